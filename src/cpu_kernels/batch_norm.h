#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <utility>
#include <vector>

#include "base/parallel.h"
#include "cpu_kernels/convolution.h"
#include "cpu_kernels/kernels.h"

namespace mnist_train::cpu_kernels {

/// Number of images, in blocks of 32; the last block may have fewer. Without images there is still
/// one block, so that a rank without samples takes part in synchronised batch norm.
struct BatchSize {
  std::int64_t images;

  std::int64_t blocks() const { return images == 0 ? 1 : ceil_divide(images, kImages); }
  std::int64_t images_in(std::int64_t block) const {
    return images - block * kImages < kImages ? images - block * kImages : kImages;
  }
  std::int64_t last_images() const { return images_in(blocks() - 1); }
  /// Calls `action(block)` for all blocks, in parallel.
  template <class Action>
  void for_each_block(const Action& action) const {
    parallel_for(0, blocks(), 1, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t block = begin; block < end; ++block) action(block);
    });
  }
};

/// Replaces `count` numbers with their sums over all ranks. Collective.
using SumOverRanks = std::function<void(double* numbers, std::int64_t count)>;

/// Tensors of a batch norm, with one element per channel.
struct BatchNormTensors {
  const float* weight;
  const float* bias;
  float* running_mean;
  float* running_var;
  bool uses_running_stats = false;   // even in training
  float* weight_gradient = nullptr;  // null if frozen; likewise below
  float* bias_gradient = nullptr;
};

/// Batch norm, optionally followed by a residual addition and a ReLU. Uses running statistics or
/// those of the batch, which cover all ranks if it is synchronised (`set_sum_over_ranks`).
template <class Element>
class BlockedBatchNorm {
 public:
  /// `limit` is the upper limit of the ReLU: 6 for ReLU6.
  BlockedBatchNorm(const ValueShape& shape, double epsilon, double momentum, bool relu, float limit)
      : kernels_(kernel_table<Element>()->layers),
        shape_(shape),
        channels_(round_up(shape.channels, kDepth<Element>)),
        epsilon_(epsilon),
        momentum_(momentum),
        relu_(relu),
        limit_(limit),
        sums_(2 * channels_ + 1),
        exact_mean_(channels_),
        variance_(channels_),
        inverse_std_(channels_) {
    for (auto* constants : {&shift_, &mean_, &scale_, &bias_, &slope_, &offset_}) {
      constants->resize(channels_);
    }
  }

  /// These set the tensors, reduction and batch for all later passes.
  void set_tensors(const BatchNormTensors& tensors) { tensors_ = tensors; }
  void set_sum_over_ranks(SumOverRanks sum) { sum_over_ranks_ = std::move(sum); }
  void set_batch(const BatchSize& batch) { batch_ = batch; }

  const BatchNormTensors& tensors() const { return tensors_; }

  /// Begins the statistics of a batch, which is added in `parts` parts. To preserve precision,
  /// squares are taken around the mean of `pixel`, an arbitrary pixel of block 0.
  void begin_statistics(std::int64_t parts, const Element* pixel) {
    part_sums_.assign(parts * 2 * channels_, 0);
    const PixelRange one_pixel{1, shape_.channels, batch_.images_in(0)};
    std::fill(shift_.begin(), shift_.end(), 0.0F);
    std::fill(sums_.begin(), sums_.end(), 0.0);
    kernels_.add_statistics(one_pixel, pixel, shift_.data(), sums_.data());
    for (std::int64_t c = 0; c < channels_; ++c) {
      shift_[c] = static_cast<float>(
          sums_[c] / static_cast<double>(std::max<std::int64_t>(one_pixel.images, 1)));
    }
  }
  /// Adds rows of a block as one part. Threads may add different parts concurrently.
  void add_statistics(std::int64_t part, std::int64_t block, const Element* x_block,
                      std::int64_t row_begin, std::int64_t row_end) {
    kernels_.add_statistics(row_range(block, row_end - row_begin), x_block + row_begin * row_size(),
                            shift_.data(), part_sums(part));
  }
  /// Computes mean and scale from the sums; updates running statistics. Collective if synchronised.
  void finish_statistics() {
    const auto local_count = static_cast<double>(batch_.images * shape_.pixels());
    add_parts();
    // Converts to sums of x and x^2, without the shift: fp64 is precise enough.
    for (std::int64_t c = 0; c < channels_; ++c) {
      const double shift = shift_[c];
      sums_[channels_ + c] += shift * (2 * sums_[c] + shift * local_count);
      sums_[c] += shift * local_count;
    }
    sums_.back() = local_count;
    if (sum_over_ranks_) sum_over_ranks_(sums_.data(), 2 * channels_ + 1);
    count_ = sums_.back();
    is_frozen_ = false;
    const double unbiased = count_ / std::max(count_ - 1, 1.0);
    for (std::int64_t c = 0; c < shape_.channels; ++c) {
      const double mean = sums_[c] / count_;
      exact_mean_[c] = mean;
      variance_[c] = std::max(sums_[channels_ + c] / count_ - mean * mean, 0.0);
      const auto update = [&](float& running, double value) {
        running = static_cast<float>(running + momentum_ * (value - running));
      };
      update(tensors_.running_mean[c], mean);
      update(tensors_.running_var[c], variance_[c] * unbiased);
    }
    set_constants();
  }
  /// Uses the running statistics instead: for evaluation or frozen layers.
  void use_running_stats() {
    std::copy_n(tensors_.running_mean, shape_.channels, exact_mean_.begin());
    std::copy_n(tensors_.running_var, shape_.channels, variance_.begin());
    is_frozen_ = true;
    set_constants();
  }

  /// y = normalised x + residual (may be null), then ReLU if any. Pointers refer to block 0.
  void normalize(const Element* x, const Element* residual, Element* y) const {
    for_each_row_range([&](const PixelRange& range, std::int64_t offset) {
      kernels_.normalize(
          range, {x + offset, mean_.data(), scale_.data(), bias_.data(),
                  residual == nullptr ? nullptr : residual + offset, relu_, limit_, y + offset});
    });
  }

  /// Begins the backward pass.
  void begin_gradients(std::int64_t parts) { part_sums_.assign(parts * 2 * channels_, 0); }
  /// Adds rows of a block to the sums for the backward pass, as one part. Threads may add different
  /// parts concurrently. Pointers refer to this block.
  void add_gradients(std::int64_t part, std::int64_t block, const Element* dy, const Element* y,
                     const Element* x, std::int64_t row_begin, std::int64_t row_end) {
    const std::int64_t offset = row_begin * row_size();
    kernels_.add_gradient_sums(row_range(block, row_end - row_begin), dy + offset,
                               relu_ ? y + offset : nullptr, x + offset, mean_.data(), limit_,
                               part_sums(part));
  }
  /// Once all rows have been added, writes the gradients of x, trained parameters and, unless null,
  /// the residual. Pointers refer to block 0. Collective if batch statistics are synchronised.
  void backward(const Element* dy, const Element* y, const Element* x, Element* dx,
                Element* residual_gradient) {
    add_parts();
    for (std::int64_t c = 0; c < shape_.channels; ++c) {
      if (tensors_.bias_gradient != nullptr) {
        tensors_.bias_gradient[c] = static_cast<float>(sums_[c]);
      }
      if (tensors_.weight_gradient == nullptr) continue;
      tensors_.weight_gradient[c] = static_cast<float>(sums_[channels_ + c] * inverse_std_[c]);
    }
    // Gradients of weight and bias remain local: gradient averaging sums them.
    if (sum_over_ranks_ && !is_frozen_) {
      sum_over_ranks_(sums_.data(), 2 * channels_);
    }
    std::fill(slope_.begin(), slope_.end(), 0.0F);
    std::fill(offset_.begin(), offset_.end(), 0.0F);
    for (std::int64_t c = 0; c < shape_.channels && !is_frozen_; ++c) {
      const double scale = tensors_.weight[c] * inverse_std_[c];
      slope_[c] = static_cast<float>(-scale * inverse_std_[c] * inverse_std_[c] *
                                     sums_[channels_ + c] / count_);
      offset_[c] = static_cast<float>(-scale * sums_[c] / count_);
    }
    for_each_row_range([&](const PixelRange& range, std::int64_t offset) {
      kernels_.normalize_gradient(
          range, {dy + offset, relu_ ? y + offset : nullptr, x + offset, mean_.data(),
                  scale_.data(), slope_.data(), offset_.data(), limit_, dx + offset,
                  residual_gradient == nullptr ? nullptr : residual_gradient + offset});
    });
  }

 private:
  PixelRange row_range(std::int64_t block, std::int64_t rows) const {
    return {rows * shape_.width, shape_.channels, batch_.images_in(block)};
  }
  std::int64_t row_size() const { return shape_.width * shape_.pixel_size<Element>(); }
  /// Calls `action(range, offset of its first element)` for all rows of all blocks, in parallel.
  /// If there are few blocks, they are divided so that more threads have work.
  template <class Action>
  void for_each_row_range(const Action& action) const {
    const std::int64_t height = shape_.height;
    const std::int64_t blocks = batch_.blocks();
    RowParts::make(blocks, height, height)
        .visit_all(blocks, [&](std::int64_t /*part*/, std::int64_t block, std::int64_t y,
                               std::int64_t end) {
          action(row_range(block, end - y), (block * height + y) * row_size());
        });
  }
  double* part_sums(std::int64_t part) { return part_sums_.data() + part * 2 * channels_; }
  /// Adds the sums of all parts.
  void add_parts() {
    std::fill(sums_.begin(), sums_.end(), 0.0);
    for (auto sum = part_sums_.begin(); sum != part_sums_.end();) {
      for (std::int64_t i = 0; i < 2 * channels_; ++i) sums_[i] += *sum++;
    }
  }
  void set_constants() {
    for (std::int64_t c = 0; c < shape_.channels; ++c) {
      inverse_std_[c] = 1 / std::sqrt(variance_[c] + epsilon_);
      mean_[c] = static_cast<float>(exact_mean_[c]);
      scale_[c] = static_cast<float>(tensors_.weight[c] * inverse_std_[c]);
      // Compensates for the rounding of the mean.
      bias_[c] = static_cast<float>(tensors_.bias[c] + (mean_[c] - exact_mean_[c]) * scale_[c]);
    }
  }

  const LayerKernels<Element>& kernels_;
  ValueShape shape_;
  std::int64_t channels_;  // padded
  double epsilon_, momentum_;
  bool relu_;
  float limit_;
  BatchNormTensors tensors_{};
  SumOverRanks sum_over_ranks_;
  BatchSize batch_{0};
  bool is_frozen_ = false;
  double count_ = 0;               // pixels in the statistics
  std::vector<double> part_sums_;  // [part][2][channels]
  std::vector<double> sums_;       // [2][channels], then the number of pixels
  std::vector<double> exact_mean_, variance_, inverse_std_;
  std::vector<float> shift_, mean_, scale_, bias_, slope_, offset_;
};

}  // namespace mnist_train::cpu_kernels
