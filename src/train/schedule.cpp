#include "train/schedule.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace mnist_train::train {

Schedule::Schedule(const settings::TrainOptions& options, std::int64_t steps_per_epoch,
                   std::int64_t total_steps)
    : options_(options.schedule),
      learning_rate_(options.learning_rate),
      steps_per_epoch_(steps_per_epoch),
      warmup_steps_(static_cast<std::int64_t>(std::llround(
          std::min(options.schedule.warmup_epochs * static_cast<double>(steps_per_epoch),
                   static_cast<double>(total_steps))))),
      scheduled_steps_(std::max<std::int64_t>(1, total_steps - warmup_steps_)) {}

double Schedule::learning_rate(std::int64_t step) const {
  if (step < warmup_steps_) {
    return learning_rate_ * static_cast<double>(step + 1) / static_cast<double>(warmup_steps_);
  }
  return learning_rate_ * factor(step - warmup_steps_);
}

double Schedule::factor(std::int64_t step) const {
  const double progress =
      std::min(1.0, static_cast<double>(step) / static_cast<double>(scheduled_steps_));
  switch (options_.name) {
    case settings::ScheduleName::kStep: {
      const std::int64_t reductions = step / (options_.step_epochs * steps_per_epoch_);
      return std::pow(options_.gamma, static_cast<double>(reductions));
    }
    case settings::ScheduleName::kLinear:
      return 1 + (options_.final_factor - 1) * progress;
    case settings::ScheduleName::kCosine:
      return options_.final_factor +
             (1 - options_.final_factor) * (1 + std::cos(std::numbers::pi * progress)) / 2;
    default:
      return 1;
  }
}

}  // namespace mnist_train::train
