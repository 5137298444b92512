#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <cstdint>

#include "data/sampler.h"

namespace mnist_train::loader {

/// The samples that one rank trains on or evaluates in one go, on the training device; there may be
/// none.
struct Batch {
  // [n,C,H,W]: stored bytes (u8), f32 from augmentation, or a model's input: f32 or bf16,
  // normalised, with channels_last strides
  at::Tensor images;
  at::Tensor labels;          // [n] i64
  at::Tensor other_labels{};  // if samples are mixed, [n] i64: labels of the partners
  at::Tensor weights{};       // if samples are mixed, [n] f32: weight of each against its partner
  at::Tensor seeds{};         // [n] i64, for models that draw by sample

  std::int64_t size() const { return labels.size(0); }
  bool is_mixed() const { return weights.defined(); }
  /// Returns all tensors, also undefined ones.
  std::array<at::Tensor*, 5> tensors() {
    return {&images, &labels, &other_labels, &weights, &seeds};
  }
};

/// The order of an epoch, or that in which samples are stored.
enum class Order { kEpoch, kStored };

/// Selects the samples of a batch.
struct Selection {
  data::Range range{};  // positions in `order`
  Order order = Order::kEpoch;
  data::Range next{};  // the next shard of the batch, with which global mixup mixes this one
  /// [n + samples_beyond()] i64 on the device, ascending by one: positions in the epoch's order,
  /// instead of `range`. They are read when the batch is computed, and then `advance` is added to
  /// each, so that a captured step takes other samples each time.
  at::Tensor positions{};
  std::int64_t advance = 0;
};

}  // namespace mnist_train::loader
