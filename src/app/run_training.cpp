#include "app/run_training.h"

#include "app/augmentation.h"
#include "app/evaluations.h"
#include "app/models.h"
#include "app/open_dataset.h"
#include "app/precision.h"
#include "app/requeue.h"
#include "app/run_recorder.h"
#include "app/stop_signal.h"
#include "app/train_epoch.h"
#include "base/clock.h"
#include "comm/cuda_module.h"
#include "loader/batch_source.h"
#include "train/trainer.h"

namespace mnist_train::app {

namespace {

std::shared_ptr<models::Model> initial_model(Worker& worker, const data::ImageSet& images) {
  const auto& weights = worker.config.model.weights;
  return weights ? model_with_weights(worker, images, *weights)
                 : fresh_model(worker.config, images);
}

/// None where the step is to be eager.
std::unique_ptr<comm::DeviceGraph> step_graph(const Worker& worker) {
  const bool wanted = worker.config.train.cuda_graphs != settings::CudaGraphs::kOff;
  if (!wanted || !worker.placement.cuda) return nullptr;
  return comm::cuda_module().make_graph();
}

bool checkpoint_is_due(const train::Trainer& trainer, const settings::CheckpointOptions& options) {
  const train::Progress& progress = trainer.progress();
  const bool by_epoch = options.every_epochs > 0 && progress.epoch % options.every_epochs == 0;
  const bool best = options.keep_best && progress.best_step == progress.step;
  return by_epoch || best || trainer.run_done() ||
         checkpoint_is_due_by_step(options, progress.step);
}

}  // namespace

ExitCode run_training(Worker& worker) {
  const settings::RunConfig& config = worker.config;
  const data::Dataset dataset = open_dataset(worker);
  const auto normalize = settings::effective_normalize(config.data, dataset.train.channels);
  const bool bf16 = trains_in_bfloat16(worker);
  const auto augmenter = make_augmenter(worker, dataset.train);
  const auto train_images = loader::make_batch_source(dataset.train, normalize, worker.device(),
                                                      bf16 ? at::kBFloat16 : at::kFloat, augmenter);
  EvaluatedImages evaluated_images(dataset, normalize, worker.device(), augmenter);
  train::Trainer trainer(config.train, initial_model(worker, dataset.train), *train_images,
                         worker.communicator, worker.device(),
                         bf16 ? fresh_model(config, dataset.train) : nullptr,
                         {config.data.split, dataset.train_parts}, step_graph(worker));
  RunRecorder recorder(worker, dataset, trainer);
  recorder.resume();
  SyncInterval pace(worker.communicator, worker.device());
  note_stop_signals();  // until here there was nothing to save, and they ended the process

  while (!trainer.run_done()) {
    if (train_epoch(worker, trainer, recorder, pace) == EpochEnd::kStopped) {
      recorder.save();
      recorder.stopped();
      requeue_if_asked(worker);
      return stopped_exit_code();
    }
    const double begin_s = monotonic_seconds();
    const Evaluations evaluations = evaluate(worker, trainer, evaluated_images);
    const double test_seconds = monotonic_seconds() - begin_s;
    recorder.epoch_finished(evaluations, test_seconds);
    trainer.end_epoch(evaluations.test.accuracy, evaluations.decisive(), test_seconds);
    if (checkpoint_is_due(trainer, config.checkpoint)) recorder.save();
    if (!trainer.run_done()) recorder.show();
  }
  recorder.finish();
  return ExitCode::kDone;
}

}  // namespace mnist_train::app
