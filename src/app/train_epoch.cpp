#include "app/train_epoch.h"

#include "app/stop_signal.h"
#include "base/system.h"

namespace mnist_train::app {

bool checkpoint_is_due_by_step(const settings::CheckpointOptions& options, std::int64_t step) {
  return options.every_steps && step % *options.every_steps == 0;
}

EpochEnd train_epoch(Worker& worker, train::Trainer& trainer, RunRecorder& recorder,
                     SyncInterval& pace) {
  train::Progress& progress = trainer.progress();
  trainer.begin_epoch();
  pace.begin_epoch();
  const double begin_s = monotonic_seconds() - progress.epoch_train_seconds;
  while (!trainer.epoch_done()) {
    launch::update(worker.status(), launch::Phase::kTraining, progress.epoch + 1,
                   progress.step + 1);
    recorder.first_step();
    worker.communicator.require_store();
    const double step_begin_s = monotonic_seconds();
    trainer.step(stop_signal() != 0);
    launch::note_step(worker.status(), monotonic_seconds() - step_begin_s);
    if (pace.is_due()) {
      const bool stop = trainer.read_sums().stop_requests > 0;
      pace.synced();
      progress.epoch_train_seconds = monotonic_seconds() - begin_s;
      if (stop) {
        recorder.after_step();
        return EpochEnd::kStopped;
      }
    }
    recorder.after_step();
    if (checkpoint_is_due_by_step(worker.config.checkpoint, progress.step) &&
        !trainer.epoch_done()) {
      trainer.read_sums();
      progress.epoch_train_seconds = monotonic_seconds() - begin_s;
      recorder.save();
    }
  }
  trainer.read_sums();
  progress.epoch_train_seconds = monotonic_seconds() - begin_s;
  if (worker.config.report.histograms) trainer.gather_gradients();
  return EpochEnd::kDone;
}

}  // namespace mnist_train::app
