#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "comm/communicator.h"
#include "loader/augmenter.h"
#include "loader/batch_source.h"
#include "support/small_images.h"
#include "support/tiny_model.h"
#include "train/trainer.h"

namespace mnist_train::testing {

inline const comm::Communicator& one_rank() {
  static const comm::Communicator communicator;
  return communicator;
}

/// Options for training a small model on noise, with uneven batches and momentum.
inline settings::TrainOptions small_run() {
  settings::TrainOptions options;
  options.epochs = 3;
  options.batch_size = 20;
  options.learning_rate = 0.05;
  options.sgd_momentum = 0.9;
  options.deterministic = true;
  return options;
}

/// Synchronizes, and returns the sums of the epoch so far.
inline const train::StepSums& synced_sums(train::Trainer& trainer) {
  trainer.synchronize();
  return trainer.progress().epoch_sums;
}

/// A trainer with its images. With `ema`, a given `model` requires an equal `average_model`.
class TrainerRig {
 public:
  explicit TrainerRig(const settings::TrainOptions& options,
                      const comm::Communicator& communicator = one_rank(),
                      std::shared_ptr<models::Model> model = nullptr,
                      const SmallImages& wanted = {.count = 50}, at::Device device = at::kCPU,
                      const settings::DataOptions& data = {},
                      accelerator::GraphFactory make_graph = {},
                      std::shared_ptr<models::Model> bf16_model = nullptr,
                      std::shared_ptr<models::Model> average_model = nullptr,
                      const std::vector<float>& class_weights = {})
      : images(loader::make_batch_source(
            small_images(wanted), {0.5, 0.25}, device, bf16_model ? at::kBFloat16 : at::kFloat,
            augmenter(options, communicator, wanted, device, data.augment))),
        trainer(options,
                {.make_model = models_in_turn({model ? model : tiny_model(options.seed), bf16_model,
                                               average_model || model || !options.ema
                                                   ? average_model
                                                   : tiny_model(options.seed)}),
                 .bf16 = bf16_model != nullptr,
                 .device = device,
                 .partition = {data.split, {}, options.shards},
                 .make_graph = std::move(make_graph),
                 .class_weights = class_weights},
                *images, communicator) {}
  TrainerRig(const TrainerRig&) = delete;  // the trainer refers to the images
  TrainerRig& operator=(const TrainerRig&) = delete;

  /// Trains like a run, with made-up evaluation results, until `step` or the end of the run.
  void run_to(std::int64_t step) {
    while (!trainer.run_done()) {
      trainer.begin_epoch();
      while (!trainer.epoch_done()) {
        if (trainer.progress().step >= step) return;
        trainer.step(/*stop_requested=*/false);
        trainer.synchronize();
      }
      const double accuracy = 0.5 + 0.01 * static_cast<double>(trainer.progress().epoch);
      trainer.end_epoch({.test_accuracy = accuracy,
                         .selection_accuracy = accuracy,
                         .selection_loss = 0.7,
                         .seconds = 0.25,
                         .best_score = accuracy,
                         .stopping_accuracy = accuracy});
    }
  }

  at::Tensor weights() const { return trainer.parameters().values().cpu().clone(); }

  std::unique_ptr<loader::BatchSource> images;
  train::Trainer trainer;

 private:
  static train::ModelFactory models_in_turn(std::vector<std::shared_ptr<models::Model>> models) {
    std::erase(models, nullptr);
    return [models = std::move(models), next = std::size_t{0}]() mutable { return models[next++]; };
  }

  static std::shared_ptr<loader::Augmenter> augmenter(const settings::TrainOptions& options,
                                                      const comm::Communicator& communicator,
                                                      const SmallImages& images, at::Device device,
                                                      const settings::AugmentList& list) {
    if (list.empty()) return nullptr;
    const auto from_next = [&communicator](const at::Tensor& mine, std::int64_t count) {
      return communicator.receive_from_next(mine, count);
    };
    const auto* mixup = settings::find<settings::MixupOptions>(list);
    const bool across = mixup != nullptr && mixup->scope == settings::MixupScope::kGlobal;
    return std::make_shared<loader::Augmenter>(
        list, settings::ImageSize{images.height, images.width}, options.seed, device,
        options.shards ? loader::ReceiveFromNext() : from_next,
        across && options.shards.has_value());
  }
};

/// Returns the first state tensor of the optimizer, which is the momentum for SGD.
inline at::Tensor momentum(const TrainerRig& rig) {
  return rig.trainer.optimizer().state().at(0).flat;
}

/// Returns whether weights, momentum and buffers are bit-identical.
inline bool same_tensors(const TrainerRig& a, const TrainerRig& b) {
  return a.weights().equal(b.weights()) && momentum(a).equal(momentum(b)) &&
         std::ranges::equal(
             a.trainer.model().buffers(), b.trainer.model().buffers(),
             [](const at::Tensor& one, const at::Tensor& other) { return one.equal(other); });
}

}  // namespace mnist_train::testing
