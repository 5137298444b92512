#pragma once

#include <cstddef>
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
inline ClassCounts count_by_class(const std::vector<std::int64_t>& confusion,
                                  std::int64_t classes) {
  const auto size = static_cast<std::size_t>(classes);
  using Counts = std::vector<std::int64_t>;
  ClassCounts counts{Counts(size), Counts(size), Counts(size)};
  for (std::size_t label = 0; label < size; ++label) {
    for (std::size_t predicted = 0; predicted < size; ++predicted) {
      const std::int64_t samples = confusion[label * size + predicted];
      counts.samples[label] += samples;
      counts.predicted[predicted] += samples;
      if (label == predicted) counts.correct[label] = samples;
    }
  }
  return counts;
}

}  // namespace mnist_train
