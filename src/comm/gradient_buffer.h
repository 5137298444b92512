#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <vector>

#include "comm/gradient_sum.h"
#include "comm/summation_tree.h"

namespace mnist_train::comm {

/// A range of the elements of the flat gradients, and of weights and optimizer state, which are
/// laid out like them.
struct Slice {
  std::int64_t begin = 0;
  std::int64_t size = 0;

  /// Returns the slice of `flat` [n] as a view.
  at::Tensor of(const at::Tensor& flat) const { return flat.narrow(0, begin, size); }
};

/// The gradients of one rank in one tensor, and behind them the step's statistics: a few scalars
/// that are summed over the ranks along with the gradients.
struct GradientBuffer {
  std::vector<at::Tensor> parameters;  // those whose gradients backward makes
  /// [r, n] f32, where a row is what `tree` calls one: gradient elements, statistics and padding.
  at::Tensor rows;
  at::Tensor flat;  // the first of them without its padding; the averager's result
  /// [r, h] bf16: where the gradients of each row's first h elements stay in the precision that
  /// they were computed in, until they are added up. Undefined where they are f32, too.
  at::Tensor bf16_rows;
  std::int64_t statistics = 0;  // how many of the last elements of `flat`
  SummationTree tree;
  std::vector<at::Tensor> views;  // by parameter: where its gradient lies in `flat`
  /// Moves the parameters' gradients into the shard's row: it replaces what is there in the first
  /// call for a shard and adds to it in later ones.
  std::function<void()> collect = [] {};
};

/// Returns the buffer of ranks that compute one shard each, whose only row is `flat`, all of its
/// storage.
GradientBuffer one_row_buffer(std::vector<at::Tensor> parameters, const at::Tensor& flat,
                              std::int64_t statistics, int ranks);

}  // namespace mnist_train::comm
