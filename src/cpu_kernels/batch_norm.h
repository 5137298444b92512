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

/// Tensors of a batch norm; all have an element per channel.
struct BatchNormTensors {
  const float* weight;
  const float* bias;
  float* running_mean;
  float* running_var;
  bool uses_running_values = false;  // in training, too
  float* weight_gradient = nullptr;  // null: is not trained; the same below
  float* bias_gradient = nullptr;
};

/// Batch norm, then optionally the sum with a residual and ReLU. Statistics are those of the
/// batch: over all ranks if `sum_over_ranks` is set.
template <class Element>
class BlockedBatchNorm {
 public:
  /// `limit` bounds the output of ReLU: 6 for ReLU6.
  BlockedBatchNorm(const ValueShape& shape, double epsilon, double momentum, bool relu,
                   float limit);

  /// Set what the next passes use.
  void set_tensors(const BatchNormTensors& tensors) { tensors_ = tensors; }
  void set_sum_over_ranks(SumOverRanks sum) { sum_over_ranks_ = std::move(sum); }
  void set_batch(const BatchSize& batch) { batch_ = batch; }

  const BatchNormTensors& tensors() const { return tensors_; }

  /// Begins statistics of a batch that is added in `parts`. Squares are summed around the mean of
  /// any pixel of block 0, so that their sum loses few digits.
  void begin_statistics(std::int64_t parts, const Element* pixel);
  /// Adds rows of a block as a part; parts may be added by different threads.
  void add_statistics(std::int64_t part, std::int64_t block, const Element* x_block,
                      std::int64_t row_begin, std::int64_t row_end);
  /// Computes mean and scale from them and updates the running values. Collective if synchronized.
  void finish_statistics();
  /// Uses the running values instead: in evaluation, or if frozen.
  void use_running_values();

  /// y = relu(normalized x + residual); `residual` may be null. Pointers to block 0.
  void normalize(const Element* x, const Element* residual, Element* y) const;

  /// Begins the backward pass.
  void begin_gradients(std::int64_t parts);
  /// Adds rows of a block to the sums that it needs, as a part; parts may be added by different
  /// threads. Pointers to the block.
  void add_gradients(std::int64_t part, std::int64_t block, const Element* dy, const Element* y,
                     const Element* x, std::int64_t row_begin, std::int64_t row_end);
  /// Writes gradients of x and of the parameters after all rows were added, and that of the
  /// residual unless it is null. Pointers to block 0. Collective if synchronized.
  void backward(const Element* dy, const Element* y, const Element* x, Element* dx,
                Element* residual_gradient);

 private:
  PixelRange range_of_rows(std::int64_t block, std::int64_t rows) const {
    return {rows * shape_.width, shape_.channels, batch_.images_of(block)};
  }
  std::int64_t row_size() const { return shape_.width * shape_.pixel_size<Element>(); }
  double* sums_of(std::int64_t part) {
    return part_sums_.data() + static_cast<std::size_t>(part) * 2 * channels_;
  }
  void add_parts();
  void set_constants();

  const LayerKernels<Element>& kernels_;
  ValueShape shape_;
  std::size_t channels_;  // padded
  double epsilon_, momentum_;
  bool relu_;
  float limit_;
  BatchNormTensors tensors_{};
  SumOverRanks sum_over_ranks_;
  BatchSize batch_{0};
  bool is_frozen_ = false;
  double count_ = 0;               // of pixels of all ranks
  std::vector<double> part_sums_;  // [part][2][channels]
  std::vector<double> sums_;       // [2][channels], and the number of pixels
  std::vector<double> exact_mean_, variance_, inverse_std_;
  std::vector<float> shift_, mean_, scale_, bias_, slope_, offset_;
};

}  // namespace mnist_train::cpu_kernels
