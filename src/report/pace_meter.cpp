#include "report/pace_meter.h"

#include <algorithm>

namespace mnist_train::report {

namespace {

constexpr double kInterval_s = 1;
constexpr double kFirstInterval_s = 0.1;

}  // namespace

std::optional<Pace> PaceMeter::add(const PacedStep& step) {
  newest_s_ = step.finished_s;
  if (!last_) {
    last_ = step;
    return std::nullopt;
  }
  loss_ += step.loss;
  samples_ += step.samples;
  const double seconds = step.finished_s - last_->finished_s;
  if (seconds < (has_told_ ? kInterval_s : kFirstInterval_s)) return std::nullopt;
  const auto steps = static_cast<double>(step.number - last_->number);
  const auto samples = static_cast<double>(step.samples_seen - last_->samples_seen);
  const Pace pace{loss_ / samples_, samples / seconds, seconds / std::max(1.0, steps)};
  last_ = step;
  loss_ = samples_ = 0;
  has_told_ = true;
  return pace;
}

void PaceMeter::pause_until(double now_s) {
  if (last_) last_->finished_s += now_s - newest_s_;
  newest_s_ = now_s;
}

}  // namespace mnist_train::report
