#include <algorithm>

#include "app/build_trainer.h"
#include "app/commands.h"
#include "app/open_dataset.h"
#include "base/print.h"
#include "checkpoint/weights.h"
#include "eval/evaluator.h"
#include "loader/batch_source.h"
#include "report/result_text.h"

namespace mnist_train::app {

void run_evaluation(Worker& worker) {
  const settings::RunConfig& config = worker.config;
  std::int64_t batch = 0;
  const auto update_status = [&] {
    launch::update(worker.status(), launch::Phase::kEvaluation, 0, 0, ++batch);
  };
  data::ImageSet test = open_dataset(worker, data::Splits::kTest).test;
  // The test set alone may lack a class.
  if (const auto trained = checkpoint::trained_image_shape(worker.job.checkpoint)) {
    test.classes = std::max(test.classes, trained->classes);
  }
  const auto model = make_model_with_weights(worker, test, worker.job.checkpoint);
  model->to(worker.device());
  update_status();
  const auto images =
      loader::make_batch_source(test, settings::effective_normalize(config.data, test.channels),
                                worker.device(), at::kFloat, make_augmenter(worker, test));
  const eval::Evaluation evaluation =
      eval::evaluate(*model, *images, config.train.test_batch_size, worker.communicator,
                     worker.device(), update_status, {.shards = config.train.shards.value_or(0)});
  if (!worker.is_rank0()) return;
  if (!worker.job.as_json) {
    return print_text(
        report::evaluation_text(evaluation.loss, evaluation.accuracy, evaluation.samples));
  }
  print_result({{"test_loss", evaluation.loss},
                {"test_accuracy", evaluation.accuracy},
                {"samples", evaluation.samples}});
}

}  // namespace mnist_train::app
