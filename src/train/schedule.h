#pragma once

#include <cstdint>
#include <vector>

#include "settings/train_options.h"

namespace mnist_train::train {

/// Sums over the samples of one or more optimizer steps.
struct StepSums {
  double loss = 0;     // summed over the samples
  double correct = 0;  // a mixed sample adds the weight of its predicted label
  double samples = 0;
  double stop_requests = 0;  // ranks that were asked to stop; NaN: see `StepLog::update_check`
};

/// The state of the `plateau` schedule.
struct PlateauState {
  double best_loss = -1;        // below 0: none yet
  std::int64_t bad_epochs = 0;  // consecutive epochs without a lower loss since the last drop
  double factor = 1;            // product of the drops of the learning rate

  bool operator==(const PlateauState&) const = default;
};

/// The state of `early_stopping`.
struct EarlyStoppingState {
  double best_accuracy = -1;    // the accuracy to beat; below 0: none yet
  std::int64_t bad_epochs = 0;  // consecutive epochs without improvement

  bool operator==(const EarlyStoppingState&) const = default;
};

/// The progress of a run. With the weights and the optimizer state, it determines the rest of the
/// run. The sample order follows from seed and epoch, and the cursor counts samples, not batches,
/// so any number of processes can resume from it.
struct Progress {
  std::int64_t epoch = 0;               // finished epochs
  std::int64_t samples_into_epoch = 0;  // position in the current epoch's global order
  std::int64_t step = 0;                // optimizer steps of the run
  std::int64_t samples_seen = 0;
  StepSums epoch_sums;             // of the unfinished epoch
  double epoch_train_seconds = 0;  // of the unfinished epoch
  double train_seconds = 0;
  double test_seconds = 0;
  std::vector<double> accuracies;  // test accuracy of each finished epoch
  double highest_accuracy = -1;    // on the validation or test set; below 0: none yet
  double best_score = 0;           // of the best weights: the metric that selected them
  double best_accuracy = -1;       // of these weights, on the same set; below 0: none yet
  double best_test_accuracy = -1;  // of these weights; below 0: none yet or unknown
  std::int64_t best_epoch = 0;     // from 1
  std::int64_t best_step = -1;     // below 0: none yet
  PlateauState plateau;
  EarlyStoppingState early_stopping;

  /// Returns the number, from 1, of the epoch that the last step belongs to.
  std::int64_t last_epoch() const { return epoch + (samples_into_epoch > 0 ? 1 : 0); }
  /// Makes the next epoch the best one.
  void forget_best() {
    best_step = -1;
    best_accuracy = best_test_accuracy = -1;
  }
  /// Takes the best weights so far from another state.
  void take_best(const Progress& other) {
    best_score = other.best_score;
    best_accuracy = other.best_accuracy;
    best_test_accuracy = other.best_test_accuracy;
    best_epoch = other.best_epoch;
    best_step = other.best_step;
  }
};

/// The result of the evaluation after an epoch.
struct EpochScores {
  double test_accuracy = 0;
  double selection_accuracy = 0;  // on the validation set if there is one, otherwise the test set
  double selection_loss = 0;      // on that set
  double seconds = 0;             // evaluation time
  double best_score = 0;          // the metric that selects the best weights; higher is better
  double stopping_accuracy = 0;   // monitored by early stopping
};

/// This rank's step times since the epoch began or was resumed. Measured only on CPUs: a GPU
/// computes asynchronously.
struct StepTimes {
  double input_s = 0;          // gathering and normalising batches
  double compute_s = 0;        // forward, backward, optimizer
  double communication_s = 0;  // averaging gradients, including waits for other ranks; overlap
                               // with backward (`bucketed`) counts as compute
  std::int64_t steps = 0;
};

/// The span of a schedule, in steps of the current batch size.
struct ScheduleSpan {
  std::int64_t total_steps = 1;    // from the start of the schedule to the end of the run
  std::int64_t skipped_steps = 0;  // added to the run's step to get the schedule's; may be < 0
};

/// Returns the span of a run's schedule for epochs of `samples` samples; it is the same at every
/// step of the run. If batches before `progress` had a different size, the schedule continues at
/// the same position in the epochs, unless `max_steps` ends the run.
ScheduleSpan schedule_span(const settings::TrainOptions& options, const Progress& progress,
                           std::int64_t samples, std::int64_t samples_per_step);

/// Returns the schedule's name if its rates depend on the length of the run, otherwise null.
const char* name_if_length_dependent(settings::ScheduleName schedule);

/// The learning rate of each optimizer step of a run.
///
/// Warm-up: steps 0 … w-1 use (step + 1) / w of the schedule's initial rate; the schedule covers
/// the remaining T steps. `step` multiplies the rate by gamma every `step_epochs` epochs (StepLR);
/// `linear` multiplies it by a factor from 1 to `final_factor` (LinearLR with total_iters T);
/// `cosine` is CosineAnnealingLR with T_max T and eta_min final_factor * learning_rate, stepped
/// once per optimizer step; `one_cycle` is OneCycleLR with total_steps T and without momentum
/// cycling; `plateau` is ReduceLROnPlateau in mode min, stepped every epoch, even in the warm-up.
class Schedule {
 public:
  Schedule(const settings::TrainOptions& options, std::int64_t steps_per_epoch,
           const ScheduleSpan& span);

  /// Returns the rate of step `step` (from 0) in an epoch that starts in the state `plateau`.
  double learning_rate(std::int64_t step, const PlateauState& plateau = {}) const;
  /// Updates the state with the loss of a finished epoch. Clears it if the schedule is not
  /// `plateau`.
  void epoch_finished(double loss, PlateauState& plateau) const;

 private:
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
