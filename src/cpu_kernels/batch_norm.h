#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "base/parallel.h"
#include "cpu_kernels/kernels.h"

namespace mnist_train::cpu_kernels {

/// Images in blocks; the last block may have fewer than 32. Without images there is still a block,
/// so that a process without samples takes part in synchronized batch norm.
struct BatchSize {
  std::int64_t images;

  std::int64_t blocks() const { return images == 0 ? 1 : ceil_divide(images, kImages); }
  std::int64_t images_of(std::int64_t block) const {
    return images - block * kImages < kImages ? images - block * kImages : kImages;
  }
  /// Calls `action(block)` for all blocks, which threads share.
  template <class Action>
  void for_each_block(const Action& action) const {
    parallel_for(0, blocks(), 1, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t block = begin; block < end; ++block) action(block);
    });
  }
};

/// Replaces `count` numbers by their sums over all ranks. Collective.
using SumOverRanks = std::function<void(double* numbers, std::int64_t count)>;

/// Trained and running values of a batch norm; all have an element per channel.
struct BatchNormTensors {
  const float* weight;
  const float* bias;
  float* running_mean;
  float* running_var;
};

/// Batch norm, then optionally the sum with a residual and ReLU. Statistics are those of the
/// batch: over all ranks if `sum_over_ranks` is set.
template <class Element>
class BlockedBatchNorm {
 public:
  BlockedBatchNorm(const ValueShape& shape, double epsilon, double momentum);

  /// Bounds the output of ReLU: 6 for ReLU6.
  void set_limit(float limit) { limit_ = limit; }
  void set_sum_over_ranks(SumOverRanks sum) { sum_over_ranks_ = std::move(sum); }

  /// Begins statistics of a batch that is added in `parts`. Squares are summed around the mean of
  /// any pixel of block 0, so that their sum loses few digits.
  void begin_statistics(const BatchSize& batch, std::int64_t parts, const Element* pixel);
  /// Adds rows of a block as a part; parts may be added by different threads.
  void add_statistics(std::int64_t part, std::int64_t block, const Element* x_block,
                      std::int64_t row_begin, std::int64_t row_end);
  /// Computes mean and scale from them and updates the running values. Collective if synchronized.
  void finish_statistics(const BatchNormTensors& tensors);
  /// Uses the running values instead: in evaluation, or if frozen.
  void use_running_values(const BatchNormTensors& tensors);

  /// y = relu(normalized x + residual); `residual` may be null. Pointers to block 0.
  void normalize(const BatchSize& batch, const Element* x, const Element* residual, bool relu,
                 Element* y) const;

  /// Begins the backward pass.
  void begin_gradients(const BatchSize& batch, std::int64_t parts);
  /// Adds rows of a block to the sums that it needs, as a part; parts may be added by different
  /// threads. `y` is null without ReLU. Pointers to the block.
  void add_gradients(std::int64_t part, std::int64_t block, const Element* dy, const Element* y,
                     const Element* x, std::int64_t row_begin, std::int64_t row_end);
  /// Writes gradients of x, weight and bias after all rows were added. Those of weight, bias and
  /// residual are not written if they are null. Pointers to block 0. Collective if synchronized.
  void backward(const BatchNormTensors& tensors, const Element* dy, const Element* y,
                const Element* x, float* weight_gradient, float* bias_gradient, Element* dx,
                Element* residual_gradient);

 private:
  PixelRange range_of(const BatchSize& batch, std::int64_t block) const {
    return {shape_.pixels(), shape_.channels, batch.images_of(block)};
  }
  PixelRange range_of_rows(std::int64_t block, std::int64_t rows) const {
    return {rows * shape_.width, shape_.channels, batch_.images_of(block)};
  }
  std::int64_t row_size() const {
    return shape_.width * static_cast<std::int64_t>(channels_) * kImages;
  }
  double* sums_of(std::int64_t part) {
    return part_sums_.data() + static_cast<std::size_t>(part) * 2 * channels_;
  }
  void add_parts();
  void set_constants(const BatchNormTensors& tensors);

  const LayerKernels<Element>& kernels_;
  ValueShape shape_;
  std::size_t channels_;  // padded
  double epsilon_, momentum_;
  float limit_ = kNoLimit;
  SumOverRanks sum_over_ranks_;
  bool is_frozen_ = false;
  BatchSize batch_{0};
  double count_ = 0;               // of pixels of all ranks
  std::vector<double> part_sums_;  // [part][2][channels]
  std::vector<double> sums_;       // [2][channels], and the number of pixels
  std::vector<double> exact_mean_, variance_, inverse_std_;
  std::vector<float> shift_, mean_, scale_, bias_, slope_, offset_;
};

}  // namespace mnist_train::cpu_kernels
