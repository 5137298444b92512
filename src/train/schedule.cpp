#include "train/schedule.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numbers>

#include "data/sampler.h"

namespace mnist_train::train {

namespace {

// The defaults of `threshold` and `eps` in ReduceLROnPlateau.
constexpr double kThreshold = 1e-4;  // minimum relative improvement of the loss
constexpr double kMinDrop = 1e-8;    // smaller learning-rate drops are skipped

/// Interpolates from `begin` to `end` along half a cosine wave.
double anneal(double begin, double end, double progress) {
  return end + (begin - end) * (1 + std::cos(std::numbers::pi * progress)) / 2;
}

}  // namespace

ScheduleSpan schedule_span(const settings::TrainOptions& options, const Progress& progress,
                           std::int64_t samples, std::int64_t samples_per_step) {
  const std::int64_t per_epoch = data::steps_per_epoch(samples, samples_per_step);
  const std::int64_t left_in_epoch =
      data::steps_per_epoch(samples - progress.samples_into_epoch, samples_per_step);
  const std::int64_t done = (progress.epoch + 1) * per_epoch - left_in_epoch;
  const std::int64_t steps = options.epochs * per_epoch;
  const std::int64_t skipped = done - progress.step;
  if (options.max_steps && *options.max_steps < steps - skipped) return {*options.max_steps, 0};
  return {steps, skipped};
}

const char* name_if_length_dependent(settings::ScheduleName schedule) {
  using enum settings::ScheduleName;
  if (schedule == kLinear) return "linear";
  if (schedule == kCosine) return "cosine";
  return schedule == kOneCycle ? "one_cycle" : nullptr;
}

Schedule::Schedule(const settings::TrainOptions& options, std::int64_t steps_per_epoch,
                   const ScheduleSpan& span)
    : options_(options.schedule),
      learning_rate_(options.learning_rate),
      steps_per_epoch_(steps_per_epoch),
      skipped_steps_(span.skipped_steps),
      warmup_steps_(static_cast<std::int64_t>(std::llround(
          std::min(options.schedule.warmup_epochs * static_cast<double>(steps_per_epoch),
                   static_cast<double>(span.total_steps))))),
      scheduled_steps_(std::max<std::int64_t>(1, span.total_steps - warmup_steps_)) {}

double Schedule::learning_rate(std::int64_t step, const PlateauState& plateau) const {
  step += skipped_steps_;
  if (options_.name == settings::ScheduleName::kOneCycle) return one_cycle(step);
  const bool is_plateau = options_.name == settings::ScheduleName::kPlateau;
  const double rate = is_plateau ? learning_rate_ * plateau.factor : learning_rate_;
  if (step < warmup_steps_) {
    return rate * static_cast<double>(step + 1) / static_cast<double>(warmup_steps_);
  }
  return rate * factor(step - warmup_steps_);
}

void Schedule::epoch_finished(double loss, PlateauState& plateau) const {
  if (options_.name != settings::ScheduleName::kPlateau) {
    plateau = {};  // of a run that was resumed with another schedule
    return;
  }
  const double limit = plateau.best_loss < 0 ? std::numeric_limits<double>::infinity()
                                             : plateau.best_loss * (1 - kThreshold);
  if (loss < limit) {
    plateau.best_loss = loss;
    plateau.bad_epochs = 0;
  } else if (++plateau.bad_epochs > options_.patience) {
    const double lower =
        std::max(plateau.factor * options_.factor, options_.min_learning_rate / learning_rate_);
    if ((plateau.factor - lower) * learning_rate_ > kMinDrop) plateau.factor = lower;
    plateau.bad_epochs = 0;
  }
}

/// The rate rises to its maximum at step `peak` and then falls until the last step.
double Schedule::one_cycle(std::int64_t step) const {
  const auto now = static_cast<double>(step);
  const auto steps = static_cast<double>(scheduled_steps_);
  const double peak = options_.pct_start * steps - 1;
  const double max_rate = options_.max_learning_rate;
  const double initial_rate = max_rate / options_.div_factor;
  if (peak > 0 && now <= peak) return anneal(initial_rate, max_rate, now / peak);
  const double progress = (now - peak) / (steps - 1 - peak);
  return anneal(max_rate, initial_rate / options_.final_div_factor, std::min(1.0, progress));
}

double Schedule::factor(std::int64_t step) const {
  using enum settings::ScheduleName;
  const double progress =
      std::min(1.0, static_cast<double>(step) / static_cast<double>(scheduled_steps_));
  if (options_.name == kLinear) return 1 + (options_.final_factor - 1) * progress;
  if (options_.name == kCosine) return anneal(1, options_.final_factor, progress);
  if (options_.name == kStep) {
    const std::int64_t reductions = step / (options_.step_epochs * steps_per_epoch_);
    return std::pow(options_.gamma, static_cast<double>(reductions));
  }
  return 1;
}

}  // namespace mnist_train::train
