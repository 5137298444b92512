#include "app/open_dataset.h"

#include <ATen/Parallel.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <chrono>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/system.h"
#include "checkpoint/weights.h"
#include "data/image_decoder.h"
#include "data/shared_dataset.h"
#include "launch/worker_process.h"
#include "report/console.h"

namespace mnist_train::app {

namespace {

constexpr std::size_t kMostNamed = 10;

/// Gathers what each rank found, in the order of the samples; all ranks must call it.
std::vector<data::SampleFailure> gather_failures(Worker& worker,
                                                 const std::vector<data::SampleFailure>& mine) {
  const auto to_text = [](const nlohmann::json& json) {
    return json.dump(-1, ' ', true, nlohmann::json::error_handler_t::replace);
  };
  nlohmann::json rows = nlohmann::json::array();
  for (const auto& failure : mine) rows.push_back({failure.sample, failure.message});
  nlohmann::json all = nlohmann::json::array();
  for (const std::string& text : worker.communicator.gather_text(to_text(rows))) {
    all.push_back(nlohmann::json::parse(text));
  }
  std::vector<data::SampleFailure> failures;
  for (const auto& rank : nlohmann::json::parse(worker.communicator.broadcast_text(to_text(all)))) {
    for (const auto& row : rank) {
      failures.push_back({row[0].get<std::int64_t>(), row[1].get<std::string>()});
    }
  }
  std::sort(failures.begin(), failures.end(),
            [](const auto& a, const auto& b) { return a.sample < b.sample; });
  return failures;
}

data::Dataset open_streamed(Worker& worker, data::Splits splits) {
  const settings::DataOptions& options = worker.config.data;
  data::require_decoder(options.decode);
  data::DatasetReader reader(options, worker.config.train.seed, splits);
  if (options.on_bad_sample == settings::OnBadSample::kError) return reader.stream();
  std::int64_t batch = 0;
  const auto failed = reader.check(
      worker.identity.rank, worker.identity.world_size,
      static_cast<int>(options.decode_threads.value_or(at::get_num_threads())),
      [&] { launch::update(worker.status(), launch::Phase::kLoadingData, 0, 0, ++batch); });
  return reader.stream(gather_failures(worker, failed));
}

data::Dataset read_or_attach(Worker& worker, data::Splits splits) {
  const settings::DataOptions& options = worker.config.data;
  if (options.decode != settings::Decode::kOnce) return open_streamed(worker, splits);
  if (!launch::was_handed_over("dataset")) {
    return data::DatasetReader(options, worker.config.train.seed, splits).read();
  }
  // Decoding may take long; should the launcher end meanwhile, the pipe says so.
  const bool decodes = options.format == settings::DataFormat::kImageFolder ||
                       options.format == settings::DataFormat::kLmdb;
  // The launcher also ends ranks that make no progress, and does not count time in which all of
  // them were stopped.
  constexpr std::chrono::hours kTimeout(24 * 7);
  std::int64_t waited = 0;
  return data::attach({launch::kDatasetFd, launch::kDatasetReadyFd}, kTimeout, [&] {
    if (decodes) launch::update(worker.status(), launch::Phase::kLoadingData, 0, 0, ++waited);
  });
}

void list_skipped(const data::Dataset& dataset) {
  if (dataset.skipped.empty()) return;
  spdlog::warn("bad samples that are left out (data.on_bad_sample is skip): {}",
               dataset.skipped.size());
  for (std::size_t i = 0; i < dataset.skipped.size(); ++i) {
    if (i < kMostNamed) {
      spdlog::warn("left out: {}", dataset.skipped[i]);
    } else {
      spdlog::debug("left out: {}", dataset.skipped[i]);
    }
  }
}

/// Names classes that nothing can be learnt of; a limit leaves out what it likes.
void warn_of_empty_classes(const data::ImageSet& set, const settings::DataOptions& options) {
  if (set.count == 0 || options.limit_train) return;
  std::vector<bool> is_known(static_cast<std::size_t>(set.classes));
  for (const std::uint8_t label : set.labels) is_known[label] = true;
  std::string empty;
  for (std::size_t label = 0; label < is_known.size(); ++label) {
    if (!is_known[label]) empty += (empty.empty() ? "" : ", ") + std::to_string(label);
  }
  if (empty.empty()) return;
  spdlog::warn("{}: no training sample is of class {} (of {} classes, numbered from 0)", set.source,
               empty, set.classes);
}

/// A network of one class has nothing to tell apart, so it is always right.
void warn_of_single_class(const data::Dataset& dataset, const settings::DataOptions& options) {
  if (dataset.train.count == 0 || dataset.train.classes != 1) return;
  spdlog::warn("{}: the training set has one class alone{}, so nothing can be learnt{}",
               dataset.train.source,
               dataset.class_names.empty() ? "" : " (" + dataset.class_names.front() + ")",
               options.format == settings::DataFormat::kImageFolder
                   ? "; expected a folder of images for each class"
                   : "");
}

data::ImageSet set_of(const network::ImageShape& shape) {
  data::ImageSet set;
  set.channels = shape.channels;
  set.height = shape.height;
  set.width = shape.width;
  set.classes = shape.classes;
  return set;
}

}  // namespace

data::Dataset open_dataset(Worker& worker, data::Splits splits) {
  launch::update(worker.status(), launch::Phase::kLoadingData, 0, 0);
  const int processes = worker.identity.world_size;
  if (splits != data::Splits::kTest) {
    settings::require_set_for_each(worker.config.data, processes);
  }
  data::Dataset dataset = read_or_attach(worker, splits);
  if (worker.is_rank0()) {
    list_skipped(dataset);
    warn_of_empty_classes(dataset.train, worker.config.data);
    warn_of_single_class(dataset, worker.config.data);
  }
  for (const std::int64_t count : dataset.train_parts) {
    if (count > 0) continue;
    throw Error(ExitCode::kData, "data.train_per_process: a set without usable samples");
  }
  return dataset;
}

data::ImageSet images_trained_on(Worker& worker) {
  const settings::DataOptions& options = worker.config.data;
  std::optional<network::ImageShape> shape;
  if (!worker.job.checkpoint.empty()) {
    shape = checkpoint::trained_image_shape(worker.job.checkpoint);
  }
  if (!shape) shape = network::known_images(options);
  return shape ? set_of(*shape) : data::shape_of_images(options);
}

std::string describe_dataset(const data::Dataset& dataset) {
  const data::ImageSet& images = dataset.train;
  const std::int64_t held_out = dataset.validation.count;
  return report::with_thousands(images.count) + " training" +
         (held_out > 0 ? ", " + report::with_thousands(held_out) + " validation" : "") + " and " +
         report::with_thousands(dataset.test.count) + " test images of " +
         std::to_string(images.channels) + "x" + std::to_string(images.height) + "x" +
         std::to_string(images.width) + ", " + std::to_string(images.classes) + " classes";
}

}  // namespace mnist_train::app
