#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "eval/evaluator.h"

namespace mnist_train::eval {

/// Sums that the ranks add up: all of them in one tensor, so that one all-reduce is enough. A
/// prediction belongs to one rank; the others leave zeros in its place.
class EvaluationSums {
 public:
  EvaluationSums(std::int64_t classes, const EvaluationRequest& request, at::Device device);

  /// Adds the samples `range` of the image set, whose `logits` are [n,classes] and whose `labels`
  /// are [n] i64.
  void add(const at::Tensor& logits, const at::Tensor& labels, data::Range range);
  /// Returns all sums as one tensor, [k] f64 on the device.
  at::Tensor& tensor() { return sums_; }
  /// Reads the result after the all-reduce; `samples` is how many all ranks together have added.
  Evaluation read(std::int64_t samples) const;

 private:
  void add_predictions(const at::Tensor& logits, const at::Tensor& predicted, data::Range range);

  std::int64_t classes_;
  const EvaluationRequest& request_;
  at::Tensor sums_;
  at::Tensor loss_and_correct_;  // [2], a view, as those below
  at::Tensor confusion_;         // [classes,classes]
  at::Tensor predictions_;       // [wanted,1 + classes]: predicted class and probabilities
  at::Tensor extra_sums_;
  at::Tensor class_numbers_;  // [classes] i64
};

}  // namespace mnist_train::eval
