#pragma once

#include <vector>

namespace mnist_train::report {

/// Maps values of one axis to [0, 1], and knows where its round numbers lie.
class Scale {
 public:
  /// Covers the finite ones of `values`. `logarithmic` counts only where all are above 0. Without
  /// any it is 0 to 1.
  Scale(const std::vector<double>& values, bool logarithmic, bool whole_numbers = false);

  double at(double value) const;
  bool logarithmic() const { return logarithmic_; }
  /// Three to seven values inside the axis.
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
