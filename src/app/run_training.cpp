#include <spdlog/spdlog.h>

#include "app/build_trainer.h"
#include "app/commands.h"
#include "app/evaluations.h"
#include "app/open_dataset.h"
#include "app/resume.h"
#include "app/run_checkpoints.h"
#include "app/run_ending.h"
#include "app/run_recorder.h"
#include "app/run_snapshots.h"
#include "app/select_kernels.h"
#include "app/stop_signal.h"
#include "base/system.h"

namespace mnist_train::app {

namespace {

enum class EpochEnd { kDone, kStopped };

/// Returns whether to stop here. A run whose last step is done only has to be evaluated.
bool must_stop(const train::Trainer& trainer) {
  return trainer.stop_requested() && !trainer.run_done();
}

/// Trains from the cursor to the end of its epoch (or of the run), or until some rank was asked to
/// stop; all ranks then stop after the same step.
EpochEnd train_epoch(Worker& worker, train::Trainer& trainer, RunCheckpoints& checkpoints,
                     RunSnapshots& snapshots, RunRecorder& recorder) {
  trainer.begin_epoch();
  while (!trainer.epoch_done()) {
    const train::Progress& progress = trainer.progress();
    launch::update(worker.status(), launch::Phase::kTraining, progress.epoch + 1,
                   progress.step + 1);
    recorder.before_step();
    worker.communicator.require_store();
    snapshots.plan();
    const double begin_s = monotonic_seconds();
    trainer.step(stop_signal() != 0, checkpoints.steps_left());
    launch::note_step(worker.status(), monotonic_seconds() - begin_s);
    recorder.after_step();
    if (must_stop(trainer)) return EpochEnd::kStopped;
    if (checkpoints.is_due_after_step() && !trainer.epoch_done()) {
      trainer.synchronize();
      recorder.record_steps();
      snapshots.take(recorder.log_positions(), /*is_checkpoint=*/true);
      checkpoints.save(recorder.log_positions());
    } else if (snapshots.is_due()) {
      trainer.synchronize();
      recorder.record_steps();
      snapshots.take(recorder.log_positions());
    }
  }
  trainer.synchronize();
  recorder.record_steps();
  // On CPUs the update may have added them up block by block, and each rank only its shard.
  if (worker.config.report.histograms) trainer.all_gather_gradients();
  return must_stop(trainer) ? EpochEnd::kStopped : EpochEnd::kDone;
}

ExitCode save_and_stop(Worker& worker, RunCheckpoints& checkpoints, RunRecorder& recorder) {
  checkpoints.save(recorder.log_positions());
  checkpoints.wait();
  recorder.finish_stopped();
  requeue_if_asked(worker);
  return stopped_exit_code();
}

}  // namespace

ExitCode run_training(Worker& worker) {
  select_kernels(worker);
  const data::Dataset dataset = open_dataset(worker);
  RunImages images = load_images(worker, dataset);
  const auto trainer = build_trainer(worker, dataset, images);
  RunSnapshots snapshots(worker, *trainer);
  RunCheckpoints checkpoints(worker, dataset, *trainer);
  const ResumedRun resumed = resume_run(worker, dataset, *trainer, snapshots, checkpoints);
  if (resumed.is_finished) {
    tell_of_earlier_end(worker, trainer->progress(), trainer->ended_by());
    return ExitCode::kDone;
  }
  RunRecorder recorder(worker, dataset, *trainer, checkpoints, resumed);
  record_stop_signals();  // until here there was nothing to save, and they ended the process

  if (trainer->run_done() && worker.is_rank0()) {
    spdlog::info("no steps are left to train ({} ends the run): evaluating the weights of step {}",
                 trainer->ended_by(), trainer->progress().step);
  }

  do {  // the evaluation is due even if no step is
    if (train_epoch(worker, *trainer, checkpoints, snapshots, recorder) == EpochEnd::kStopped) {
      return save_and_stop(worker, checkpoints, recorder);
    }
    snapshots.plan();
    const Evaluations evaluations = evaluate(worker, *trainer, images);
    recorder.epoch_finished(evaluations);
    trainer->end_epoch(evaluations.scores());
    if (checkpoints.is_due_after_epoch()) {
      snapshots.take(recorder.log_positions(), /*is_checkpoint=*/true);
      checkpoints.save(recorder.log_positions());
    } else if (snapshots.is_due()) {
      snapshots.take(recorder.log_positions());
    }
    if (!trainer->run_done()) recorder.refresh_report();
  } while (!trainer->run_done());
  checkpoints.wait();
  recorder.finish();
  return ExitCode::kDone;
}

}  // namespace mnist_train::app
