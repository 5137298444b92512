#pragma once

#include <cmath>
#include <cstdint>
#include <numeric>

#include "report/records.h"

namespace mnist_train::report {

/// The confusion matrix of an evaluation. It refers to `details`.
class Confusion {
 public:
  explicit Confusion(const EpochDetails& details)
      : classes(details.classes), counts_(details.confusion) {}

  /// Returns how many images of the class `truth` were predicted as the class `predicted`.
  std::int64_t at(std::int64_t truth, std::int64_t predicted) const {
    return counts_[static_cast<std::size_t>(truth * classes + predicted)];
  }
  /// Returns how many images the class `truth` has.
  std::int64_t of(std::int64_t truth) const {
    const auto row = counts_.begin() + static_cast<std::ptrdiff_t>(truth * classes);
    return std::accumulate(row, row + static_cast<std::ptrdiff_t>(classes), std::int64_t{0});
  }
  std::int64_t all() const {
    return std::accumulate(counts_.begin(), counts_.end(), std::int64_t{0});
  }
  /// Returns the accuracy on the class `truth`, NaN where it has no images.
  double accuracy(std::int64_t truth) const {
    const auto images = static_cast<double>(of(truth));
    return images == 0 ? NAN : static_cast<double>(at(truth, truth)) / images;
  }

  const std::int64_t classes;

 private:
  const std::vector<std::int64_t>& counts_;
};

}  // namespace mnist_train::report
