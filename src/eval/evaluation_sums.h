#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "eval/evaluator.h"

namespace mnist_train::eval {

/// What the ranks add up: everything in one tensor, so that one all-reduce brings all of it.
/// A prediction belongs to one rank; the others leave zeros in its place.
class EvaluationSums {
 public:
  EvaluationSums(std::int64_t classes, const EvaluationRequest& request, at::Device device);

  /// `logits` [n,classes] and `labels` [n] i64 of the samples `range` of the image set.
  void add(const at::Tensor& logits, const at::Tensor& labels, data::Range range);
  /// [k] f64, on the device.
  at::Tensor& tensor() { return sums_; }
  /// After the all-reduce; `samples` is how many all ranks together have added.
  Evaluation read(std::int64_t samples) const;

 private:
  void note_predictions(const at::Tensor& logits, const at::Tensor& predicted, data::Range range);

  std::int64_t classes_;
  const EvaluationRequest& request_;
  at::Tensor sums_;
  at::Tensor loss_and_correct_;  // [2], a view, as those below
  at::Tensor confusion_;         // [classes, classes]
  at::Tensor predictions_;       // [wanted, 1 + classes]: guess and probabilities
  at::Tensor riders_;
  at::Tensor class_numbers_;  // [classes] i64
};

}  // namespace mnist_train::eval
