#pragma once

#include <cstdint>

#include "settings/train_options.h"

namespace mnist_train::train {

/// The learning rate of each optimizer step of a run.
///
/// Warm-up: steps 0 … w-1 take (step + 1) / w of the rate that the schedule itself gives at its
/// start; the schedule runs over what follows. With t of T steps after the warm-up: `step`
/// multiplies by gamma every `step_epochs` epochs (StepLR); `linear` goes from 1 to `final_factor`
/// (LinearLR with total_iters T); `cosine` is CosineAnnealingLR with T_max T and eta_min
/// final_factor * learning_rate, stepped once an optimizer step.
class Schedule {
 public:
  /// `steps_per_epoch` optimizer steps; `total_steps` of the whole run.
  Schedule(const settings::TrainOptions& options, std::int64_t steps_per_epoch,
           std::int64_t total_steps);

  /// `step` counts from 0.
  double learning_rate(std::int64_t step) const;

 private:
  double factor(std::int64_t step) const;

  settings::ScheduleOptions options_;
  double learning_rate_;
  std::int64_t steps_per_epoch_;
  std::int64_t warmup_steps_;
  std::int64_t scheduled_steps_;  // after the warm-up
};

}  // namespace mnist_train::train
