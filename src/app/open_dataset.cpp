#include "app/open_dataset.h"

#include "data/dataset.h"
#include "data/shared_dataset.h"
#include "launch/worker_process.h"
#include "report/console.h"

namespace mnist_train::app {

data::Dataset open_dataset(Worker& worker) {
  launch::update(worker.status(), launch::Phase::kLoadingData, 0, 0);
  if (!launch::was_handed_over("dataset")) {
    return data::open_dataset(worker.config.data, worker.config.train.seed);
  }
  const auto timeout = std::chrono::milliseconds(
      static_cast<std::int64_t>(worker.config.launch.hang_timeout_s * 1000));
  return data::attach({launch::kDatasetFd, launch::kDatasetReadyFd}, timeout);
}

std::string describe_dataset(const data::Dataset& dataset) {
  const data::ImageSet& train = dataset.train;
  const std::int64_t held_out = dataset.validation.count;
  return report::with_thousands(train.count) + " training" +
         (held_out > 0 ? ", " + report::with_thousands(held_out) + " validation" : "") + " and " +
         report::with_thousands(dataset.test.count) + " test images of " +
         std::to_string(train.channels) + "x" + std::to_string(train.height) + "x" +
         std::to_string(train.width) + ", " + std::to_string(train.classes) + " classes";
}

}  // namespace mnist_train::app
