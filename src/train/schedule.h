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

struct Progress;

/// What a schedule is stretched over, in steps of the present batch size.
struct ScheduleSpan {
  std::int64_t total_steps = 1;    // from the start of the schedule to the end of the run
  std::int64_t skipped_steps = 0;  // by which the schedule is ahead of the run's steps, or behind

  /// Returns the optimizer steps of the whole run, if nothing ends it early.
  std::int64_t steps_of_run() const { return total_steps - skipped_steps; }
};

/// Returns what the schedule of a run is stretched over that has come as far as `progress`, in
/// epochs of `samples`. It is the same at every step. The batches of earlier steps may have had
/// another size: where the epochs end the run, its schedule stands where its epochs do.
ScheduleSpan schedule_span(const settings::TrainOptions& options, const Progress& progress,
                           std::int64_t samples, std::int64_t samples_per_step);

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
  Schedule(const settings::TrainOptions& options, std::int64_t steps_per_epoch,
           const ScheduleSpan& span);

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
  std::int64_t skipped_steps_;
  std::int64_t warmup_steps_;
  std::int64_t scheduled_steps_;  // after the warm-up
};

}  // namespace mnist_train::train
