#pragma once

#include <cstdint>
#include <vector>

#include "settings/train_options.h"

namespace mnist_train::train {

/// Sums over the samples of one optimizer step, or of several.
struct StepSums {
  double loss = 0;     // of the samples' losses
  double correct = 0;  // samples; a mixed one counts by the weight of the label that was predicted
  double samples = 0;
  double stop_requests = 0;  // ranks that were asked to stop; NaN: see `StepLog::update_check`
};

StepSums& operator+=(StepSums& sums, const StepSums& more);

/// The state of the schedule `plateau`.
struct PlateauState {
  double best_loss = -1;        // below 0: none yet
  std::int64_t bad_epochs = 0;  // without a better loss, in a row and since the last drop
  std::int64_t drops = 0;       // of the learning rate

  bool operator==(const PlateauState&) const = default;
};

/// The state of `early_stopping`.
struct EarlyStoppingState {
  double best_accuracy = -1;    // that later ones must improve on; below 0: none yet
  std::int64_t bad_epochs = 0;  // without an improvement, in a row

  bool operator==(const EarlyStoppingState&) const = default;
};

/// The progress of a run: together with the weights and the optimizer's state, everything that the
/// rest of the run depends on. The order of the samples follows from seed and epoch, and the cursor
/// counts samples, not batches, so any number of processes can resume from it.
struct Progress {
  std::int64_t epoch = 0;               // finished epochs
  std::int64_t samples_into_epoch = 0;  // of the next epoch, in its global order
  std::int64_t step = 0;                // optimizer steps of the run
  std::int64_t samples_seen = 0;
  StepSums epoch_sums;             // of the unfinished epoch
  double epoch_train_seconds = 0;  // of the unfinished epoch
  double train_seconds = 0;
  double test_seconds = 0;
  std::vector<double> accuracies;  // test accuracy of each finished epoch
  double highest_accuracy = -1;    // on the validation set, or the test set; below 0: none yet
  double best_score = 0;           // of the best weights: the figure that chose them
  double best_accuracy = -1;       // of these weights, on the same set; below 0: none yet
  double best_test_accuracy = -1;  // of the same weights; below 0: none yet, or not known
  std::int64_t best_epoch = 0;     // from 1
  std::int64_t best_step = -1;     // below 0: none yet
  PlateauState plateau;
  EarlyStoppingState early_stopping;

  /// Returns the number, from 1, of the epoch that the last step belongs to.
  std::int64_t last_epoch() const { return epoch + (samples_into_epoch > 0 ? 1 : 0); }
  /// Lets the next epoch be the best one: earlier ones were compared by another figure.
  void forget_best() {
    best_step = -1;
    best_accuracy = best_test_accuracy = -1;
    early_stopping = {};
  }
};

/// The result of the evaluation after an epoch.
struct EpochScores {
  double test_accuracy = 0;
  double selection_accuracy = 0;  // on the validation set if there is one, else the test set
  double selection_loss = 0;      // on that set
  double seconds = 0;             // that the evaluation took
  double best_score = 0;          // the figure that chooses the best weights: the highest
  double stopping_accuracy = 0;   // that early stopping goes by
};

/// The times of this rank's steps since the epoch was begun or resumed. Only on CPUs: a GPU
/// computes asynchronously.
struct StepTimes {
  double input_s = 0;          // gathering and normalising batches
  double compute_s = 0;        // forward, backward, optimizer
  double communication_s = 0;  // averaging gradients, including waits for other ranks; overlap
                               // with backward (`bucketed`) counts as compute
  std::vector<double> step_s;  // of each step, all of it
};

/// The span of a schedule, in steps of the present batch size.
struct ScheduleSpan {
  std::int64_t total_steps = 1;    // from the start of the schedule to the end of the run
  std::int64_t skipped_steps = 0;  // by which the schedule is ahead of the run's steps, or behind

  /// Returns the optimizer steps of the whole run, if nothing ends it early.
  std::int64_t steps_of_run() const { return total_steps - skipped_steps; }
};

/// Returns the span of a run's schedule, in epochs of `samples`; the same at every step of the run.
/// Batches before `progress` may have had another size: if the epochs end the run, its schedule
/// follows the epochs.
ScheduleSpan schedule_span(const settings::TrainOptions& options, const Progress& progress,
                           std::int64_t samples, std::int64_t samples_per_step);

/// Returns the name of a schedule whose rates depend on the length of the run; null for others.
const char* name_if_bound_to_end(settings::ScheduleName schedule);

/// The learning rate of each optimizer step of a run.
///
/// Warm-up: steps 0 … w-1 take (step + 1) / w of the rate that the schedule itself gives at its
/// start; the schedule covers the rest. With t of T steps after the warm-up: `step`
/// multiplies by gamma every `step_epochs` epochs (StepLR); `linear` goes from 1 to `final_factor`
/// (LinearLR with total_iters T); `cosine` is CosineAnnealingLR with T_max T and eta_min
/// final_factor * learning_rate, stepped once an optimizer step; `one_cycle` is OneCycleLR with
/// total_steps T and without its cycling of the momentum, which stays as configured; `plateau` is
/// ReduceLROnPlateau in mode min, stepped once an epoch, in the warm-up as well.
class Schedule {
 public:
  Schedule(const settings::TrainOptions& options, std::int64_t steps_per_epoch,
           const ScheduleSpan& span);

  /// Returns the rate of step number `step`, from 0, in an epoch that begins with `plateau`.
  double learning_rate(std::int64_t step, const PlateauState& plateau = {}) const;
  /// Enters the loss of a finished epoch, if the schedule is `plateau`.
  void epoch_finished(double loss, PlateauState& plateau) const;

 private:
  double rate_after(std::int64_t drops) const;
  double factor(std::int64_t step) const;
  double one_cycle(std::int64_t step) const;

  settings::ScheduleOptions options_;
  double learning_rate_;
  std::int64_t steps_per_epoch_;
  std::int64_t skipped_steps_;
  std::int64_t warmup_steps_;
  std::int64_t scheduled_steps_;  // after the warm-up
};

}  // namespace mnist_train::train
