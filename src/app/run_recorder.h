#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "app/worker.h"
#include "checkpoint/checkpoint.h"
#include "eval/evaluator.h"
#include "report/records.h"
#include "train/trainer.h"

namespace mnist_train::app {

/// Saves the training state: as checkpoints, which a thread of rank 0 writes while training
/// continues, and as snapshots in our own launcher's memory, from which a run that lost a process
/// restarts. If there are no snapshots (`launch.max_restarts` is 0, or another launcher is used),
/// the snapshot methods do nothing. All ranks must call `is_snapshot_due` and `save` at the same
/// points. All references must outlive this object. `positions`: the lengths of the append-only
/// files, on rank 0.
class StateSaver {
 public:
  /// Opens any snapshot memory that the launcher handed over. Collective. Throws Error(kRunFailed).
  StateSaver(Worker& worker, const data::Dataset& dataset, train::Trainer& trainer);

  /// Decides, on rank 0, whether a snapshot is due after the next collective (with a GPU, never).
  void plan_snapshot();
  /// Returns, after that collective, whether a snapshot is due.
  bool is_snapshot_due() { return memory_ && memory_->is_planned(++snapshot_point_); }
  /// Restores rank 0's trainer from the newest snapshot, if an earlier attempt left one at least as
  /// new as the newest checkpoint. Also writes newer checkpoints that the attempt did not finish.
  std::optional<LogPositions> restore_snapshot();
  /// Restores that snapshot, if any, and writes it as a checkpoint. Throws Error(kCheckpoint).
  void save_snapshot();

  /// Returns the number of steps until `checkpoint.every_steps` requires a checkpoint.
  std::int64_t steps_to_checkpoint() const;
  /// Returns whether `checkpoint.every_steps` requires a checkpoint of the current step.
  bool is_checkpoint_due_after_step() const;
  /// Returns whether to save a checkpoint after the epoch that has just ended.
  bool is_checkpoint_due_after_epoch() const;
  /// On rank 0 of a resumed run, notes whether its best checkpoint is an extra one (`extra_step_`).
  void note_resumed();

  /// Takes a snapshot and, if `is_checkpoint`, a checkpoint. Throws like `save_checkpoint`.
  void save(const LogPositions& positions, bool is_checkpoint);
  /// Takes a checkpoint unless there is already one of this step. Throws Error(kCheckpoint) if the
  /// previous one could not be written.
  void save_checkpoint(const LogPositions& positions);
  /// Throws Error(kCheckpoint) if the last checkpoint could not be written; does not wait.
  void check() { writer_.check(); }
  /// Waits until the last checkpoint is on disk. Throws Error(kCheckpoint).
  void wait();
  /// Returns how many seconds training has waited for checkpoints since the last call.
  double take_seconds() { return std::exchange(seconds_, 0); }

 private:
  template <class Work>
  void timed_on_rank0(const Work& work);
  /// Returns whether the config asks for a checkpoint of this step, which ends `epoch`, if any.
  bool is_scheduled(std::optional<std::int64_t> epoch, std::int64_t step) const;

  Worker& worker_;
  const data::Dataset& dataset_;
  train::Trainer& trainer_;
  std::optional<checkpoint::SnapshotMemory> memory_;
  std::int64_t snapshot_point_ = 0;
  double snapshot_taken_s_ = 0;
  int snapshots_ = 0;          // taken by this process
  double min_snapshot_s_ = 0;  // shortest time that a snapshot took; 0: none was timed
  checkpoint::CheckpointWriter writer_;
  std::int64_t saved_step_ = -1;
  std::string code_hash_;         // see checkpoint::RunFacts; only on rank 0
  std::int64_t extra_step_ = -1;  // of a checkpoint saved only because it is the best so far
  double seconds_ = 0;
};

/// The state that a run resumes from.
struct ResumedRun {
  std::filesystem::path path;    // of the checkpoint; "memory": a snapshot; empty: a fresh start
  checkpoint::RunFacts facts{};  // the checkpoint's; for a snapshot only the file lengths
  bool is_finished = false;      // the run had finished before this command
  nlohmann::json changed{};      // see RunStart
};

/// On rank 0 of a new run with `model.weights`, returns a model with these weights; otherwise, or
/// if the shape of the images cannot be determined, null. Decodes at most one image, so that a file
/// that does not match the model is reported early. Throws Error(kCheckpoint).
std::shared_ptr<models::Model> initial_model(Worker& worker);

/// Initialises the trainer of every rank: from the snapshot that `restore_snapshot` finds; if there
/// is none, from the checkpoint that the job requests (the newest intact one in the run folder, or
/// the file given to `--resume`); failing that, from `initial` or, if that is null, from
/// `model.weights`, if set. Only rank 0 reads files. Records in the run folder that are later than
/// this state are moved aside or removed. Collective. Throws Error(kCheckpoint).
ResumedRun resume_run(Worker& worker, const data::Dataset& dataset, train::Trainer& trainer,
                      StateSaver& saver, std::shared_ptr<models::Model> initial);

/// The evaluations after an epoch.
struct Evaluations {
  std::optional<eval::Evaluation> validation;  // if samples are held out
  eval::Evaluation test;
  double seconds = 0;  // of both

  /// Returns the metrics of both, in a record without training metrics.
  report::EpochRecord record() const;
  /// Returns the scores that choose the best epoch and that can end a run or lower the learning
  /// rate: from the validation set if there is one, otherwise from the test set.
  train::EpochScores scores(settings::BestBy best_by) const;
};

/// Records the progress and the results of a run in a list of sinks (console, metrics, page, …),
/// which is empty on ranks other than 0. All references must outlive this object.
class RunRecorder {
 public:
  /// Logs a description of the run, and starts its files. Throws Error(kRunFailed).
  RunRecorder(Worker& worker, const data::Dataset& dataset, train::Trainer& trainer,
              StateSaver& saver, const ResumedRun& resumed);

  /// Called before each step; the first call ends the start-up.
  void before_step();
  /// Called after each Trainer::step: shows the progress, and calls `record_steps`.
  void after_step();
  /// Records the steps at multiples of `log_interval` whose sums are now available, and refreshes
  /// the page and the summary from time to time.
  void record_steps();
  void epoch_finished(const Evaluations& evaluations);
  /// Updates the page and summary, unless updates have already taken their share of the run's time.
  void refresh_report();
  /// Returns the lengths of the append-only files, for a checkpoint. If the run ended within an
  /// epoch, they exclude that epoch's record, which a longer run writes again.
  LogPositions log_positions() const;

  /// After the last epoch: writes the model and final summary, and prints the result. Collective.
  void finish();
  /// Called after a signal, once a checkpoint has been saved: writes the final summary. Collective.
  void finish_stopped();

 private:
  void begin(const ResumedRun& resumed);
  template <class Call>
  void for_each_sink(const Call& call);
  void add_times(const Evaluations& evaluations, report::EpochResult& result);
  void end(const std::string& status);

  Worker& worker_;
  const data::Dataset& dataset_;
  train::Trainer& trainer_;
  StateSaver& saver_;
  std::vector<std::unique_ptr<report::Sink>> sinks_;
  std::set<std::string> failed_sinks_;  // by `optional_output`
  std::int64_t log_interval_;           // steps
  report::Summary summary_;
  std::vector<std::string> images_;  // of the predictions, the same after every epoch
  double begin_s_;
  double recorded_s_ = 0;  // time of the last step record
  std::int64_t recorded_samples_ = 0;
  double refreshed_s_;
  double refresh_seconds_ = 0;  // of all refreshes
  double report_seconds_ = 0;   // in sinks, since the last epoch record
  std::optional<LogPositions> before_partial_epoch_;
};

}  // namespace mnist_train::app
