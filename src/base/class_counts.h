#pragma once

#include <cstddef>
#include <cstdint>
#include <iterator>
#include <limits>
#include <numeric>
#include <optional>
#include <utility>
#include <vector>

#include "base/json.h"

namespace mnist_train {

/// Returns NaN if `whole` is 0.
inline double fraction_of(std::int64_t part, std::int64_t whole) {
  return whole == 0 ? std::numeric_limits<double>::quiet_NaN()
                    : static_cast<double>(part) / static_cast<double>(whole);
}

/// Sample counts of one class.
struct ClassMetrics {
  std::int64_t samples = 0;
  std::int64_t predicted = 0;  // samples predicted as the class
  std::int64_t correct = 0;    // true positives

  // Metrics as fractions; NaN if the denominator is 0.
  double recall() const { return fraction_of(correct, samples); }
  double precision() const { return fraction_of(correct, predicted); }
  double f1() const { return fraction_of(2 * correct, samples + predicted); }

  bool is_never_predicted() const { return samples > 0 && predicted == 0; }
};

/// Sample counts per class, and the confusion matrix unless there are too many classes.
struct ClassCounts {
  std::vector<std::int64_t> samples;         // labelled with the class
  std::vector<std::int64_t> predicted;       // samples predicted as the class
  std::vector<std::int64_t> correct;         // true positives
  std::vector<std::int64_t> confusion = {};  // [classes, classes] by label and prediction, or empty

  MNIST_TRAIN_VISIT(samples, predicted, correct)

  std::int64_t classes() const { return std::ssize(samples); }
  std::int64_t total() const { return std::reduce(samples.begin(), samples.end()); }
  std::int64_t total_correct() const { return std::reduce(correct.begin(), correct.end()); }
  ClassMetrics of(std::int64_t label) const {
    const auto at = static_cast<std::size_t>(label);
    return {samples[at], predicted[at], correct[at]};
  }
  /// Returns the number of samples of class `label` that were predicted as `other`.
  std::int64_t at(std::int64_t label, std::int64_t other) const {
    return confusion[static_cast<std::size_t>(label * classes() + other)];
  }
};

/// Computes the counts per class from a confusion matrix.
inline ClassCounts count_by_class(std::vector<std::int64_t> confusion, std::int64_t classes) {
  const auto size = static_cast<std::size_t>(classes);
  using Counts = std::vector<std::int64_t>;
  ClassCounts counts{Counts(size), Counts(size), Counts(size), std::move(confusion)};
  for (std::size_t label = 0; label < size; ++label) {
    for (std::size_t predicted = 0; predicted < size; ++predicted) {
      const std::int64_t samples = counts.confusion[label * size + predicted];
      counts.samples[label] += samples;
      counts.predicted[predicted] += samples;
      if (label == predicted) counts.correct[label] = samples;
    }
  }
  return counts;
}

/// Metrics of an evaluation.
struct EvaluationMetrics {
  double loss = 0;               // mean negative log-likelihood
  double accuracy = 0;           // fraction of samples whose label has the largest logit
  double balanced_accuracy = 0;  // mean recall of the classes with samples
  // Fraction of samples whose label has a top-five logit; set only with more than five classes.
  std::optional<double> top5_accuracy{};
  std::int64_t samples = 0;
  ClassCounts counts{};
};

}  // namespace mnist_train
