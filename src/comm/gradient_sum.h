#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <cstdint>
#include <vector>

#include "comm/summation_tree.h"

namespace mnist_train::comm {

/// Gradients [n] in the types that they were computed in.
struct GradientRow {
  at::Tensor bf16;  // of the first elements; undefined where there are none
  at::Tensor f32;   // of the others
};

/// Gradients [n] on a CPU that are still to be added up, over rows that are each [n]. Whoever needs
/// the sum can have it block by block, and take what it needs from the cache.
struct GradientSum {
  static constexpr std::int64_t kBlock = 1024;  // elements

  /// What a thread needs to add up blocks in; `blocks` are as many as rows.
  struct Scratch {
    std::vector<std::array<float, kBlock>> blocks;
    std::vector<const float*> found;  // where each row's block is, or its sum; null: not yet read
  };

  std::vector<GradientRow> rows;
  std::vector<RowSum> order;  // empty where there is one row

  /// Adds up `count` <= kBlock elements from number `begin` on. Returns the sum, which lies in the
  /// row, if there is but one, or in `scratch`.
  const float* block(std::int64_t begin, std::int64_t count, Scratch& scratch) const;
  Scratch make_scratch() const;
  /// Adds up all elements to `result` [n] f32, which may be one of the rows.
  void add_up(const at::Tensor& result) const;
  /// Returns whether the only row, which is all f32, has neither NaN nor infinity.
  bool is_finite() const;
};

/// Returns whether none of `count` values is NaN or infinite.
bool all_finite(const float* values, std::int64_t count);

}  // namespace mnist_train::comm
