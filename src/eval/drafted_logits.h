#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "data/sampler.h"
#include "models/model.h"

namespace mnist_train::eval {

/// The logits of a series of batches on a CPU, most of which a copy of the model in bf16 makes, the
/// draft. Samples that the draft does not clearly get right are computed again by the model itself,
/// several batches' together, and so are those whose scores are wanted. So predictions are the
/// model's, of wrong ones the scores too, and the loss differs by what bf16 rounds in terms that
/// are all small.
class DraftedLogits {
 public:
  /// Both models are in evaluation mode, compute on the CPU and outlive this. The model computes
  /// `batch_size` samples at a time.
  DraftedLogits(models::Model& model, models::Model& draft, std::int64_t batch_size);

  /// Adds a batch: its `images` [n,C,H,W] f32 and `labels` [n] i64. The model computes the rows in
  /// `wanted`, whatever the draft says.
  void add(const at::Tensor& images, const at::Tensor& labels,
           const std::vector<data::Range>& wanted);
  /// Returns how many samples were added since the last `take`.
  std::int64_t size() const { return labels_.defined() ? labels_.size(0) : 0; }

  struct Result {
    at::Tensor logits;  // [n,classes] f32
    at::Tensor labels;  // [n] i64
  };
  /// Returns those of all samples added since the last call, at least one, in that order.
  Result take();

 private:
  void compute_again(std::int64_t count);

  models::Model& model_;
  models::Model& draft_;
  std::int64_t batch_size_;
  at::Tensor logits_;   // [n,classes], of all samples, the model's where it has computed them
  at::Tensor labels_;   // [n]
  at::Tensor images_;   // [m,C,H,W], of those that the model has yet to compute
  at::Tensor numbers_;  // [m] i64: which ones of all samples they are
};

}  // namespace mnist_train::eval
