#pragma once

#include <vector>

namespace mnist_train::report {

/// The scale of one axis.
class ChartScale {
 public:
  /// Covers the finite ones of `values`, or 0 to 1 without any. The scale is linear where not all
  /// of them are positive.
  ChartScale(const std::vector<double>& values, bool logarithmic, bool whole_numbers = false);

  /// Returns the place of a value on the axis, which goes from 0 to 1.
  double at(double value) const;
  bool logarithmic() const { return logarithmic_; }
  /// Returns three to seven round values inside the axis.
  const std::vector<double>& ticks() const { return ticks_; }
  double high() const { return high_; }

 private:
  void place_ticks();
  void place_logarithmic_ticks();

  bool logarithmic_;
  bool whole_numbers_;
  double low_ = 0;
  double high_ = 1;
  std::vector<double> ticks_;
};

}  // namespace mnist_train::report
