#include "app/build_trainer.h"

#include <spdlog/spdlog.h>

#include <utility>

#include "accelerator/device.h"
#include "checkpoint/weights.h"
#include "comm/shared_segment.h"

namespace mnist_train::app {

namespace {

/// All ranks decide alike, since each must compute gradients of the same precision. Collective.
bool trains_in_bfloat16(const Worker& worker) {
  const bool native = accelerator::computes_bfloat16(worker.device());
  switch (worker.config.train.precision) {
    case settings::PrecisionName::kFp32:
      return false;
    case settings::PrecisionName::kBf16:
      if (!native) {
        spdlog::warn("precision is bf16, but {} does not compute it natively: fp32 is faster here",
                     worker.placement.cuda ? "this GPU" : "this processor");
      }
      return true;
    case settings::PrecisionName::kAuto:
      break;
  }
  return worker.communicator.sum_over_ranks(native ? 0 : 1) == 0;
}

/// How many steps an epoch has is known only here.
void warn_of_cut_warmup(const Worker& worker, const train::Trainer& trainer) {
  const settings::TrainOptions& options = worker.config.train;
  const double steps =
      options.schedule.warmup_epochs * static_cast<double>(trainer.steps_per_epoch());
  if (!worker.is_rank0() || !options.max_steps ||
      steps <= static_cast<double>(*options.max_steps)) {
    return;
  }
  spdlog::warn(
      "schedule.warmup_epochs {} is {:.0f} steps, but max_steps ends the run after {}: the "
      "learning rate rises until then instead",
      options.schedule.warmup_epochs, steps, *options.max_steps);
}

/// Ranks that cannot share memory send messages, unless the config insists. Collective: all ranks
/// get the same error.
std::unique_ptr<train::Trainer> make_trainer(const Worker& worker, const train::TrainerSetup& setup,
                                             loader::BatchSource& images) {
  using Strategy = settings::AveragingStrategy;
  settings::TrainOptions options = worker.config.train;
  Strategy& strategy = options.gradient_averaging.strategy;
  try {
    return std::make_unique<train::Trainer>(options, setup, images, worker.communicator);
  } catch (const comm::SharedMemoryError& error) {
    if (strategy == Strategy::kSharedMemory) throw;
    if (worker.is_rank0()) spdlog::warn("averaging gradients with strategy flat: {}", error.what());
  }
  strategy = Strategy::kFlat;
  return std::make_unique<train::Trainer>(options, setup, images, worker.communicator);
}

}  // namespace

std::shared_ptr<loader::Augmenter> make_augmenter(const Worker& worker,
                                                  const data::ImageSet& images) {
  const settings::AugmentList& list = worker.config.data.augment;
  if (list.empty()) return nullptr;
  const auto* mixup = settings::find<settings::MixupOptions>(list);
  const bool across = mixup != nullptr && mixup->scope == settings::MixupScope::kGlobal;
  loader::FromNext from_next;
  const std::int64_t shards =
      settings::shard_count(worker.config.train, worker.communicator.world_size());
  const bool takes_partners = across && worker.config.train.shards && shards > 1;
  if (across && shards == 1) {
    spdlog::warn(
        "mixup with scope global mixes in the samples of another process, or of another shard of "
        "the batch, but there is only one: samples stay as they are");
  } else if (across && !takes_partners) {
    from_next = [&communicator = worker.communicator](const at::Tensor& mine, std::int64_t count) {
      return communicator.receive_from_next(mine, count);
    };
  }
  return std::make_shared<loader::Augmenter>(list, settings::ImageSize{images.height, images.width},
                                             worker.config.train.seed, worker.device(),
                                             std::move(from_next), takes_partners);
}

network::ImageShape model_input(const settings::RunConfig& config, const data::ImageSet& images) {
  return network::model_input(config.data,
                              {images.channels, images.height, images.width, images.classes});
}

std::shared_ptr<models::Model> make_model(const settings::RunConfig& config,
                                          const data::ImageSet& images) {
  return models::make_model(config.model, model_input(config, images), config.train.seed);
}

std::shared_ptr<models::Model> make_model_with_weights(Worker& worker, const data::ImageSet& images,
                                                       const std::filesystem::path& file) {
  launch::update(worker.status(), launch::Phase::kLoadingWeights, 0, 0);
  auto model = make_model(worker.config, images);
  checkpoint::load_state_dict(*model, checkpoint::read_weights(file), file.string());
  checkpoint::require_finite(*model, file.string());
  return model;
}

RunImages load_images(Worker& worker, const data::Dataset& dataset) {
  const auto normalize = settings::effective_normalize(worker.config.data, dataset.train.channels);
  const auto augmenter = make_augmenter(worker, dataset.train);
  const auto load = [&](const data::ImageSet& images, at::ScalarType type) {
    return loader::make_batch_source(images, normalize, worker.device(), type, augmenter);
  };
  RunImages images;
  images.bf16 = trains_in_bfloat16(worker);
  images.training = load(dataset.train, images.bf16 ? at::kBFloat16 : at::kFloat);
  if (dataset.validation.count > 0) images.validation = load(dataset.validation, at::kFloat);
  images.test = load(dataset.test, at::kFloat);
  return images;
}

std::unique_ptr<train::Trainer> build_trainer(Worker& worker, const data::Dataset& dataset,
                                              RunImages& images) {
  const settings::RunConfig& config = worker.config;
  train::TrainerSetup setup;
  setup.make_model = [&] { return make_model(config, dataset.train); };
  setup.bf16 = images.bf16;
  setup.device = worker.device();
  setup.partition = {config.data.split, dataset.train_parts, config.train.shards};
  if (config.train.cuda_graphs != settings::CudaGraphs::kOff) {
    setup.make_graph = accelerator::graph_factory(worker.device());
  }
  auto trainer = make_trainer(worker, setup, *images.training);
  warn_of_cut_warmup(worker, *trainer);
  return trainer;
}

}  // namespace mnist_train::app
