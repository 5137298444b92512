#include "app/evaluations.h"

#include <algorithm>
#include <vector>

#include "app/epoch_result.h"
#include "base/system.h"

namespace mnist_train::app {

namespace {

/// Returns the first `images_per_batch` samples of each of the first `batches` batches of
/// `batch_size`, as a single process would take them.
std::vector<data::Range> predicted_samples(const settings::PredictionsOptions& options,
                                           std::int64_t batch_size, std::int64_t count) {
  std::vector<data::Range> ranges;
  const std::int64_t batches = std::min(options.batches, (count + batch_size - 1) / batch_size);
  const std::int64_t images_per_batch = std::min(options.images_per_batch, batch_size);
  for (std::int64_t batch = 0; batch < batches; ++batch) {
    const std::int64_t begin = batch * batch_size;
    ranges.push_back({begin, std::min(begin + images_per_batch, count)});
  }
  return ranges;
}

}  // namespace

Evaluations evaluate(Worker& worker, train::Trainer& trainer, RunImages& images) {
  const double begin_s = monotonic_seconds();
  const train::Progress& progress = trainer.progress();
  std::int64_t batch = 0;
  const auto update_status = [&] {
    launch::update(worker.status(), launch::Phase::kEvaluation, progress.epoch + 1, progress.step,
                   ++batch);
  };
  update_status();
  trainer.broadcast_buffers();
  const std::int64_t batch_size = worker.config.train.test_batch_size;
  const auto evaluate_on = [&](loader::BatchSource& some, eval::EvaluationRequest request) {
    request.shards = worker.config.train.shards.value_or(0);
    request.draft = trainer.draft_model();
    return eval::evaluate(trainer.evaluated_model(), some, batch_size, worker.communicator,
                          worker.device(), update_status, request);
  };
  Evaluations result;
  if (images.validation) result.validation = evaluate_on(*images.validation, {});
  result.test = evaluate_on(
      *images.test,
      {predicted_samples(worker.config.report.predictions, batch_size, images.test->count()),
       pack_times(trainer.times(), worker.identity.rank, worker.identity.world_size),
       /*wrong_predictions=*/worker.config.report.predictions.batches > 0});
  result.seconds = monotonic_seconds() - begin_s;
  return result;
}

}  // namespace mnist_train::app
