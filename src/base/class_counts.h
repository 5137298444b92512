#pragma once

#include <cstdint>
#include <vector>

#include "base/json.h"

namespace mnist_train {

/// Numbers of samples by class.
struct ClassCounts {
  std::vector<std::int64_t> samples;    // of the class
  std::vector<std::int64_t> predicted;  // as the class
  std::vector<std::int64_t> correct;    // both

  MNIST_TRAIN_VISIT(samples, predicted, correct)
};

/// Sums up a confusion matrix [classes, classes]: samples by label and prediction.
ClassCounts count_by_class(const std::vector<std::int64_t>& confusion, std::int64_t classes);

}  // namespace mnist_train
