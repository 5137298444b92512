#include "base/class_counts.h"

#include <cstddef>

namespace mnist_train {

ClassCounts count_by_class(const std::vector<std::int64_t>& confusion, std::int64_t classes) {
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
