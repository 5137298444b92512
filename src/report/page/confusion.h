#pragma once

#include <cstdint>
#include <vector>

#include "report/metrics_log.h"

namespace mnist_train::report {

/// The counts of an evaluation: which class was taken for which. Refers to `details`.
class Confusion {
 public:
  explicit Confusion(const EpochDetails& details)
      : classes(details.classes), counts_(details.confusion) {}

  std::int64_t at(std::int64_t truth, std::int64_t guess) const {
    return counts_[static_cast<std::size_t>(truth * classes + guess)];
  }
  /// Images of a class.
  std::int64_t of(std::int64_t truth) const;
  std::int64_t all() const;
  std::int64_t wrong() const;
  /// Of a class; NaN where it has no images.
  double accuracy(std::int64_t truth) const;

  const std::int64_t classes;

 private:
  const std::vector<std::int64_t>& counts_;
};

struct ConfusedPair {
  std::int64_t truth;
  std::int64_t guess;
  std::int64_t number;
};

/// The pairs that are mistaken most often, the most frequent first; at most `most`.
std::vector<ConfusedPair> most_confused(const Confusion& confusion, std::size_t most);

}  // namespace mnist_train::report
