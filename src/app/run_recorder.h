#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "app/worker.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/snapshot_memory.h"
#include "eval/evaluator.h"
#include "report/records.h"
#include "train/trainer.h"

namespace mnist_train::app {

/// Saves the state of training: as checkpoints, which rank 0 takes and a thread writes while
/// training goes on, and as snapshots in the memory of our own launcher, from which it restarts a
/// run that lost a process. Without them (`launch.max_restarts` 0, other launchers) their methods
/// do nothing. All ranks must call each method at the same moments. All references must outlive
/// this. `positions`: the lengths of the append-only files, on rank 0.
class StateSaver {
 public:
  /// Opens the memory that the launcher handed over. Collective. Throws Error(kRunFailed).
  StateSaver(Worker& worker, const data::Dataset& dataset, train::Trainer& trainer);

  /// Decides on rank 0 if a snapshot is due after the collective that follows.
  void plan_snapshot();
  /// Returns, after that collective, if it is.
  bool is_snapshot_due() { return memory_ && memory_->is_planned(++moment_); }
  /// Gives the trainer of rank 0 the newest snapshot, if an earlier attempt left one as new as its
  /// newest checkpoint. Writes a checkpoint that the lost process did not finish.
  std::optional<checkpoint::SnapshotFacts> restore_snapshot();

  /// Returns the steps until `checkpoint.every_steps` asks for a checkpoint.
  std::int64_t steps_to_checkpoint() const;
  /// Returns if `checkpoint.every_steps` asks for a checkpoint after the last step.
  bool is_checkpoint_due_after_step() const;
  /// Returns if the config asks for a checkpoint after the epoch that has just been recorded.
  bool is_checkpoint_due_after_epoch() const;

  /// Takes a snapshot and, if `is_checkpoint`, a checkpoint. Throws as `save_checkpoint`.
  void save(const report::LogPositions& positions, bool is_checkpoint);
  /// Takes a checkpoint, unless there is one of this step. Throws Error(kCheckpoint) if the one
  /// before could not be written.
  void save_checkpoint(const report::LogPositions& positions);
  /// Throws Error(kCheckpoint) if the last checkpoint could not be written; does not wait.
  void check() { writer_.check(); }
  /// Waits until the last checkpoint is on disk. Throws Error(kCheckpoint).
  void wait();
  /// Returns the seconds that training waited for checkpoints since the last call.
  double take_seconds() { return std::exchange(seconds_, 0); }

 private:
  template <class Work>
  void timed_on_rank0(const Work& work);

  Worker& worker_;
  const data::Dataset& dataset_;
  train::Trainer& trainer_;
  std::optional<checkpoint::SnapshotMemory> memory_;
  std::int64_t moment_ = 0;
  double snapshot_taken_s_ = 0;
  checkpoint::CheckpointWriter writer_;
  std::int64_t saved_step_ = -1;
  double seconds_ = 0;
};

/// The state that a run resumes from.
struct ResumedRun {
  std::filesystem::path path;  // of the checkpoint; "memory": a snapshot; empty: a fresh start
  checkpoint::RunFacts facts;  // of the checkpoint; of a snapshot, the lengths of files alone
  bool is_finished = false;    // the run was complete before this command
};

/// Brings the trainer of every rank to the start of the run: to the snapshot that an earlier
/// attempt left in memory, else to the checkpoint that the job asks for (the newest whole one of
/// the run folder, or the file of `--resume`), else to the weights of `model.weights`, if any. Only
/// rank 0 reads files. Later records in the run folder are set aside or removed. Collective. Throws
/// Error(kCheckpoint).
ResumedRun resume_run(Worker& worker, const data::Dataset& dataset, train::Trainer& trainer,
                      StateSaver& saver);

/// The evaluations after an epoch.
struct Evaluations {
  std::optional<eval::Evaluation> validation;  // if samples are held out
  eval::Evaluation test;
  double seconds = 0;  // of both

  /// Returns the figures of both, in a record without those of training.
  report::EpochRecord record() const;
  /// The validation set, if any, chooses the best epoch and can end a run or lower the learning
  /// rate.
  train::EpochScores scores(settings::BestBy best_by) const;
};

/// Returns a rank's step times as numbers to sum over the ranks, zeros in place of the others'.
std::vector<double> pack_times(const train::StepTimes& times, int rank, int world_size);
/// Returns the times of all ranks that took steps from these sums.
std::vector<report::RankTimes> unpack_times(const std::vector<double>& sums);

/// Records the progress and the results of a run: rank 0 has a list of sinks (console, metrics,
/// page, …), the other ranks an empty one. All references must outlive this.
class RunRecorder {
 public:
  /// Describes the run in the log, and begins its files. Throws Error(kRunFailed).
  RunRecorder(Worker& worker, const data::Dataset& dataset, train::Trainer& trainer,
              StateSaver& saver, const ResumedRun& resumed);

  /// Before each step: the first one ends the start-up.
  void before_step();
  /// After each call of Trainer::step: shows the progress, and calls `record_steps`.
  void after_step();
  /// Records those steps of `log_interval` whose sums the trainer knows by now, and refreshes page
  /// and summary now and then.
  void record_steps();
  void epoch_finished(const Evaluations& evaluations);
  /// Updates page and summary, if that keeps within its fraction of the run's time.
  void refresh_report();
  /// Returns the lengths of the append-only files, for a checkpoint. If the run ended within the
  /// last epoch, without its record, which a longer run writes again.
  report::LogPositions log_positions() const;

  /// After the last epoch: writes the model and the last summary, and prints the result.
  /// Collective.
  void finish();
  /// After a signal, when a checkpoint is saved: writes the last summary. Collective.
  void finish_stopped();

 private:
  void begin(const ResumedRun& resumed);
  template <class Call>
  void for_each_sink(const Call& call);
  std::vector<report::Prediction> predictions(
      const eval::Evaluation& test, const std::function<imaging::Image(std::int64_t)>& image);
  void add_times(const Evaluations& evaluations, report::EpochResult& result);
  void end(const std::string& status);

  Worker& worker_;
  const data::Dataset& dataset_;
  train::Trainer& trainer_;
  StateSaver& saver_;
  std::vector<std::unique_ptr<report::Sink>> sinks_;
  std::set<std::string> warned_of_;  // dispensable ones that failed
  std::int64_t log_interval_;        // steps
  report::Summary summary_;
  std::vector<std::string> images_;  // of the predictions: the same ones after every epoch
  double begin_s_;
  double recorded_s_ = 0;  // time of the last step record
  std::int64_t recorded_samples_ = 0;
  report::PaceMeter pace_;
  double refreshed_s_;
  double refresh_seconds_ = 0;  // of all refreshes
  double report_seconds_ = 0;   // in sinks, since the last epoch record
  std::optional<report::LogPositions> before_cut_epoch_;
};

}  // namespace mnist_train::app
