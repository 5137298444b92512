#include "report/page/chart_scale.h"

#include <algorithm>
#include <cmath>
#include <iterator>

namespace mnist_train::report {

namespace {

constexpr double kWantedTicks = 5;

/// 1, 2 or 5 times a power of ten, at least `step`.
double round_up(double step) {
  const double power = std::pow(10.0, std::floor(std::log10(step)));
  for (const double factor : {1.0, 2.0, 5.0}) {
    if (factor * power >= step * (1 - 1e-9)) return factor * power;
  }
  return 10 * power;
}

}  // namespace

ChartScale::ChartScale(const std::vector<double>& values, bool logarithmic, bool whole_numbers)
    : logarithmic_(logarithmic), whole_numbers_(whole_numbers) {
  std::vector<double> finite;
  std::copy_if(values.begin(), values.end(), std::back_inserter(finite),
               [](double value) { return std::isfinite(value) && std::abs(value) < 1e300; });
  if (!finite.empty()) {
    const auto [least, most] = std::minmax_element(finite.begin(), finite.end());
    low_ = *least;
    high_ = *most;
  }
  logarithmic_ = logarithmic_ && low_ > 0;
  if (high_ - low_ <= 1e-12 * std::abs(high_)) {  // one value: in the middle
    const double margin = low_ == 0 ? 1 : std::abs(low_) * 0.1;
    high_ += margin;
    if (!logarithmic_) low_ -= low_ == 0 ? 0 : margin;
  }
  place_ticks();
}

double ChartScale::at(double value) const {
  if (logarithmic_) {
    return std::log(std::max(value, 1e-300) / low_) / std::log(high_ / low_);
  }
  return (value - low_) / (high_ - low_);
}

void ChartScale::place_ticks() {
  ticks_.clear();
  if (logarithmic_ && high_ / low_ >= 5) {
    place_logarithmic_ticks();
    if (ticks_.size() >= 2) return;
    ticks_.clear();
  }
  double step = round_up((high_ - low_) / kWantedTicks);
  if (whole_numbers_) step = std::max(step, 1.0);
  const double first = std::ceil(low_ / step - 1e-9);
  for (int i = 0; i < 20; ++i) {
    const double tick = (first + i) * step;
    if (tick > high_ + 1e-9 * step) break;
    ticks_.push_back(tick);
  }
}

void ChartScale::place_logarithmic_ticks() {
  const double decades = std::log10(high_ / low_);
  const std::vector<double> factors =
      decades > 4 ? std::vector<double>{1} : std::vector<double>{1, 2, 5};
  const int first = static_cast<int>(std::floor(std::log10(low_)));
  const int last = static_cast<int>(std::ceil(std::log10(high_)));
  const int stride = std::max(1, (last - first) / 6);
  for (int power = first; power <= last; power += decades > 4 ? stride : 1) {
    for (const double factor : factors) {
      const double tick = factor * std::pow(10.0, power);
      if (tick >= low_ * (1 - 1e-9) && tick <= high_ * (1 + 1e-9)) ticks_.push_back(tick);
    }
  }
}

}  // namespace mnist_train::report
