#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <cstdint>

namespace mnist_train::loader {

/// The samples that one rank trains on or evaluates in one go, on the training device; there may be
/// none.
struct Batch {
  // [n,C,H,W]: bytes (u8) as they are stored, f32 that augmentation made of them, or what a model
  // takes: f32 or bf16, normalised, with channels_last strides
  at::Tensor images;
  at::Tensor labels;          // [n] i64
  at::Tensor other_labels{};  // with mixup, [n] i64: the labels of what was mixed in
  at::Tensor weights{};       // with mixup, [n] f32: how much of each image is its own sample
  at::Tensor seeds{};         // for models that draw by sample, [n] i64

  std::int64_t size() const { return labels.size(0); }
  bool is_mixed() const { return weights.defined(); }
  /// Returns all tensors, also those that are not defined.
  std::array<at::Tensor*, 5> tensors() {
    return {&images, &labels, &other_labels, &weights, &seeds};
  }
};

}  // namespace mnist_train::loader
