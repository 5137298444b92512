#pragma once

#include <cstdint>

#include "settings/train_options.h"

namespace mnist_train::train {

/// What the schedule `plateau` knows of the epochs so far.
struct PlateauState {
  double best_loss = -1;        // below 0: none yet
  std::int64_t bad_epochs = 0;  // without a better loss, in a row and since the last drop
  std::int64_t drops = 0;       // of the learning rate

  bool operator==(const PlateauState&) const = default;
};

/// Returns the optimizer steps of a whole run, if nothing ends it early.
std::int64_t total_steps(const settings::TrainOptions& options, std::int64_t steps_per_epoch);

/// Returns the name of a schedule that reaches to the end of the run, whose rates depend on the
/// run's length; null for the others.
const char* name_if_bound_to_end(settings::ScheduleName schedule);

/// The learning rate of each optimizer step of a run.
///
/// Warm-up: steps 0 … w-1 take (step + 1) / w of the rate that the schedule itself gives at its
/// start; the schedule runs over what follows. With t of T steps after the warm-up: `step`
/// multiplies by gamma every `step_epochs` epochs (StepLR); `linear` goes from 1 to `final_factor`
/// (LinearLR with total_iters T); `cosine` is CosineAnnealingLR with T_max T and eta_min
/// final_factor * learning_rate, stepped once an optimizer step; `one_cycle` is OneCycleLR with
/// total_steps T and without its cycling of the momentum, which stays as configured; `plateau` is
/// ReduceLROnPlateau in mode min, stepped once an epoch, in the warm-up as well.
class Schedule {
 public:
  /// `steps_per_epoch` optimizer steps; `total_steps` of the whole run.
  Schedule(const settings::TrainOptions& options, std::int64_t steps_per_epoch,
           std::int64_t total_steps);

  /// Returns the rate of step number `step`, from 0, in an epoch that begins with `plateau`.
  double learning_rate(std::int64_t step, const PlateauState& plateau = {}) const;
  /// Enters the loss of a finished epoch where the schedule is `plateau`.
  void epoch_finished(double loss, PlateauState& plateau) const;

 private:
  double rate_after(std::int64_t drops) const;
  double factor(std::int64_t step) const;
  double one_cycle(std::int64_t step) const;

  settings::ScheduleOptions options_;
  double learning_rate_;
  std::int64_t steps_per_epoch_;
  std::int64_t warmup_steps_;
  std::int64_t scheduled_steps_;  // after the warm-up
};

}  // namespace mnist_train::train
