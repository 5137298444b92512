#include <ATen/Parallel.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <chrono>
#include <nlohmann/json.hpp>

#include "app/worker.h"
#include "base/print.h"
#include "checkpoint/checkpoint.h"
#include "launch/supervisor.h"

namespace mnist_train::app {

namespace {

/// Returns the failures of all ranks, in the order of the samples. Collective.
std::vector<data::SampleFailure> all_failures(Worker& worker,
                                              const std::vector<data::SampleFailure>& mine) {
  nlohmann::json rows = nlohmann::json::array();
  for (const auto& failure : mine) rows.push_back({failure.sample, failure.message});
  std::vector<data::SampleFailure> failures;
  for (const std::string& of_rank : worker.all_gather_text(json_text(rows))) {
    for (const auto& row : nlohmann::json::parse(of_rank)) {
      failures.push_back({row[0].get<std::int64_t>(), row[1].get<std::string>()});
    }
  }
  std::ranges::sort(failures, {}, &data::SampleFailure::sample);
  return failures;
}

data::Dataset open_streamed(Worker& worker, data::Splits splits) {
  const settings::DataOptions& options = worker.config.data;
  data::require_decoder(options.decode);
  data::DatasetReader reader(options, splits, worker.job.dataset_record);
  if (options.on_bad_sample == settings::OnBadSample::kError) return reader.stream();
  std::int64_t batch = 0;
  const auto failed = reader.check(
      worker.identity.rank, worker.identity.world_size,
      static_cast<int>(options.decode_threads.value_or(at::get_num_threads())),
      [&] { launch::update(worker.status(), launch::Phase::kLoadingData, 0, 0, ++batch); });
  return reader.stream(all_failures(worker, failed));
}

data::Dataset read_or_attach(Worker& worker, data::Splits splits) {
  const settings::DataOptions& options = worker.config.data;
  if (options.decode != settings::Decode::kOnce) return open_streamed(worker, splits);
  if (!launch::was_handed_over("dataset")) {
    return data::DatasetReader(options, splits, worker.job.dataset_record).read();
  }
  // Decoding may take a long time; if the launcher ends meanwhile, the pipe closes.
  const bool decodes = options.is_encoded();
  // The launcher itself ends ranks that make no progress, and does not count time in which all of
  // them were stopped.
  constexpr std::chrono::hours kTimeout(24 * 7);
  std::int64_t waited = 0;
  return data::attach({launch::kDatasetFd, launch::kDatasetReadyFd}, kTimeout, [&] {
    if (decodes) launch::update(worker.status(), launch::Phase::kLoadingData, 0, 0, ++waited);
  });
}

void list_skipped(const data::Dataset& dataset) {
  constexpr std::size_t kMostNamed = 10;
  if (dataset.skipped.empty()) return;
  spdlog::warn("skipped {} unusable image{} (data.on_bad_sample: skip)", dataset.skipped.size(),
               dataset.skipped.size() == 1 ? "" : "s");
  for (std::size_t i = 0; i < dataset.skipped.size(); ++i) {
    spdlog::log(i < kMostNamed ? spdlog::level::warn : spdlog::level::debug, "skipped: {}",
                dataset.skipped[i]);
  }
}

/// Logs what was left out of the data set, and remarks on its files.
void list_left_out(const data::Dataset& dataset) {
  const std::string left_out = data::left_out_text(dataset.left_out);
  if (!left_out.empty()) spdlog::warn("left out: {}", left_out);
  if (dataset.left_out.added > 0) {
    spdlog::info("ignored {} file{} that are new since the run began", dataset.left_out.added,
                 dataset.left_out.added == 1 ? "" : "s");
  }
  for (const std::string& note : dataset.notes) spdlog::warn("{}", note);
}

/// Names classes without samples, unless a limit left them out.
void warn_of_empty_classes(const data::ImageSet& set, const settings::DataOptions& options) {
  if (set.count == 0 || options.limit_train) return;
  const std::vector<std::int64_t> sizes = set.class_sizes();
  std::vector<std::string> empty;
  for (std::size_t label = 0; label < sizes.size(); ++label) {
    if (sizes[label] == 0) empty.push_back(std::to_string(label));
  }
  if (empty.empty()) return;
  spdlog::warn("{}: no training sample is of class {} (of {} classes, numbered from 0)", set.source,
               first_names(empty, 10), set.classes);
}

/// A network of one class is always right.
void warn_of_single_class(const data::Dataset& dataset, const settings::DataOptions& options) {
  if (dataset.train.count == 0 || dataset.train.classes != 1) return;
  spdlog::warn("{}: the training set has only one class{}, so nothing can be learnt{}",
               dataset.train.source,
               dataset.class_names.empty() ? "" : " (" + dataset.class_names.front() + ")",
               options.format == settings::DataFormat::kImageFolder
                   ? "; expected a folder of images for each class"
                   : "");
}

}  // namespace

data::Dataset open_dataset(Worker& worker, data::Splits splits) {
  launch::update(worker.status(), launch::Phase::kLoadingData, 0, 0);
  if (splits != data::Splits::kTest) {
    settings::require_set_for_each(worker.config.data, worker.identity.world_size);
  }
  data::Dataset dataset = read_or_attach(worker, splits);
  if (worker.is_rank0()) {
    list_left_out(dataset);
    list_skipped(dataset);
    warn_of_empty_classes(dataset.train, worker.config.data);
    warn_of_single_class(dataset, worker.config.data);
  }
  if (std::ranges::any_of(dataset.train_parts, [](std::int64_t count) { return count <= 0; })) {
    throw Error(ExitCode::kData, "data.train_per_process: a set without usable samples");
  }
  return dataset;
}

data::ImageSet images_trained_on(Worker& worker) {
  const settings::DataOptions& options = worker.config.data;
  std::optional<network::ImageShape> shape;
  if (!worker.job.checkpoint.empty()) {
    if (const auto facts = checkpoint::facts_of(worker.job.checkpoint)) shape = facts->images;
  }
  if (!shape) shape = network::known_images(options);
  if (!shape && options.size && options.channels && !worker.job.dataset_record.empty()) {
    const auto record = data::read_dataset_record(worker.job.dataset_record);
    const auto classes = static_cast<std::int64_t>(record.class_names.size());
    shape =
        network::ImageShape{*options.channels, options.size->height, options.size->width, classes};
  }
  if (!shape) return data::shape_of_images(options, worker.job.dataset_record);
  return data::set_of_shape({shape->channels, shape->height, shape->width}, shape->classes);
}

std::vector<std::string> class_names_of(const Worker& worker) {
  const settings::DataOptions& options = worker.config.data;
  if (!options.format) return settings::named_dataset(*options.dataset).class_names;
  if (const auto facts = checkpoint::facts_of(worker.job.checkpoint)) return facts->class_names;
  if (worker.job.dataset_record.empty()) return {};
  return data::read_dataset_record(worker.job.dataset_record).class_names;
}

std::shared_ptr<loader::Augmenter> make_augmenter(const Worker& worker,
                                                  const data::ImageSet& images, bool exchanges) {
  if (worker.config.data.augment.empty()) return nullptr;
  const settings::AugmentList list = settings::list_for_images(
      worker.config.data.augment, images.channels, settings::background_of(worker.config.data));
  const bool across = exchanges && settings::mixing_scope(list) == settings::MixupScope::kGlobal;
  loader::FromNext from_next;
  const std::int64_t shards =
      settings::shard_count(worker.config.train, worker.communicator.world_size());
  const bool takes_partners = across && worker.config.train.shards && shards > 1;
  if (across && shards == 1) {
    spdlog::warn(
        "{} with scope global mixes in the samples of another process, or of another shard of "
        "the batch, but there is only one: samples stay as they are",
        settings::find<settings::MixupOptions>(list) != nullptr ? "mixup" : "cutmix");
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
  checkpoint::load_weights(*model, {file, {}}, model_input(worker.config, images));
  return model;
}

}  // namespace mnist_train::app
