#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "report/records.h"

namespace mnist_train::report {

/// The confusion matrix of an evaluation. It refers to `details`.
class Confusion {
 public:
  explicit Confusion(const EpochDetails& details);

  /// Returns how many images of the class `truth` were predicted as the class `predicted`.
  std::int64_t at(std::int64_t truth, std::int64_t predicted) const {
    return counts_[static_cast<std::size_t>(truth * classes + predicted)];
  }
  /// Returns how many images the class `truth` has.
  std::int64_t of(std::int64_t truth) const { return rows_[static_cast<std::size_t>(truth)]; }
  /// Returns how many images were predicted as the class `predicted`.
  std::int64_t predicted_as(std::int64_t predicted) const {
    return columns_[static_cast<std::size_t>(predicted)];
  }
  std::int64_t all() const { return all_; }
  std::int64_t right() const { return right_; }

  // The measures of a class are fractions, NaN where it has no images or no predictions.

  /// Returns the fraction of the images of a class that is predicted as it: its accuracy.
  double recall(std::int64_t label) const;
  /// Returns the fraction of the predictions as a class that is right.
  double precision(std::int64_t label) const;
  /// Returns the harmonic mean of the two.
  double f1(std::int64_t label) const;

  const std::int64_t classes;

 private:
  const std::vector<std::int64_t>& counts_;
  std::vector<std::int64_t> rows_;
  std::vector<std::int64_t> columns_;
  std::int64_t all_ = 0;
  std::int64_t right_ = 0;
};

/// A class whose images were taken for another.
struct ConfusedPair {
  std::int64_t truth = 0;
  std::int64_t predicted = 0;
  std::int64_t images = 0;
};

/// Returns at most `most` pairs, the most frequent first.
std::vector<ConfusedPair> most_confused(const Confusion& confusion, std::size_t most);

}  // namespace mnist_train::report
