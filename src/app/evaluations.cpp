#include "app/evaluations.h"

#include <algorithm>

#include "app/rank_times.h"

namespace mnist_train::app {

namespace {

/// The first `images_per_batch` samples of each of the first `batches` batches of `batch_size`, as
/// one process alone would take them.
std::vector<data::Range> predicted(const settings::PredictionsOptions& options,
                                   std::int64_t batch_size, std::int64_t count) {
  std::vector<data::Range> ranges;
  const std::int64_t batches = std::min(options.batches, (count + batch_size - 1) / batch_size);
  const std::int64_t shown = std::min(options.images_per_batch, batch_size);
  for (std::int64_t batch = 0; batch < batches; ++batch) {
    const std::int64_t begin = batch * batch_size;
    ranges.push_back({begin, std::min(begin + shown, count)});
  }
  return ranges;
}

}  // namespace

EvaluatedImages::EvaluatedImages(const data::Dataset& dataset,
                                 const settings::NormalizeOptions& normalize, at::Device device,
                                 const std::shared_ptr<loader::Augmenter>& augmenter)
    : test(loader::make_batch_source(dataset.test, normalize, device, at::kFloat, augmenter)) {
  if (dataset.validation.count > 0) {
    validation =
        loader::make_batch_source(dataset.validation, normalize, device, at::kFloat, augmenter);
  }
}

Evaluations evaluate(Worker& worker, train::Trainer& trainer, EvaluatedImages& images) {
  const train::Progress& progress = trainer.progress();
  std::int64_t batch = 0;
  const auto still_here = [&] {
    launch::update(worker.status(), launch::Phase::kEvaluation, progress.epoch + 1, progress.step,
                   ++batch);
  };
  still_here();
  trainer.broadcast_buffers();
  const std::int64_t batch_size = worker.config.train.test_batch_size;
  const auto over = [&](loader::BatchSource& some, const eval::EvaluationRequest& request) {
    return eval::evaluate(trainer.model(), some, batch_size, worker.communicator, worker.device(),
                          still_here, request);
  };
  Evaluations result;
  if (images.validation) result.validation = over(*images.validation, {});
  const eval::EvaluationRequest request{
      predicted(worker.config.report.predictions, batch_size, images.test->count()),
      pack_times(trainer.times(), worker.identity.rank, worker.identity.world_size)};
  result.test = over(*images.test, request);
  return result;
}

}  // namespace mnist_train::app
