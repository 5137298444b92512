#include <algorithm>

#include "app/build_trainer.h"
#include "app/commands.h"
#include "app/open_dataset.h"
#include "base/print.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/weights.h"
#include "eval/evaluator.h"
#include "loader/batch_source.h"

namespace mnist_train::app {

namespace {

/// Returns the options that a checkpoint was trained with.
settings::TrainOptions options_of(const checkpoint::TensorFile& file, const std::string& name) {
  return settings::parse_run_config({name, checkpoint::checkpoint_facts(file, name).config, {}})
      .train;
}

void export_with_optimizer(const Worker& worker) {
  const std::string name = worker.job.checkpoint.string();
  const checkpoint::TensorFile file = checkpoint::read_checkpoint(worker.job.checkpoint);
  checkpoint::write_python_checkpoint(worker.job.export_path, file, options_of(file, name), name);
}

}  // namespace

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
                     worker.device(), update_status);
  if (!worker.is_rank0()) return;
  print_result({{"test_loss", evaluation.loss},
                {"test_accuracy", evaluation.accuracy},
                {"samples", evaluation.samples}});
}

void run_export(Worker& worker) {
  launch::update(worker.status(), launch::Phase::kSaving, 0, 0);
  if (worker.job.with_optimizer) return export_with_optimizer(worker);
  const auto format = worker.job.export_format == "pt" ? checkpoint::WeightsFormat::kPt
                                                       : checkpoint::WeightsFormat::kSafetensors;
  checkpoint::write_weights(worker.job.export_path, checkpoint::read_weights(worker.job.checkpoint),
                            format);
}

}  // namespace mnist_train::app
