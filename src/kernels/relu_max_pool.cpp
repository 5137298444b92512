#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/max_pool2d_with_indices.h>
#include <ATen/ops/max_pool2d_with_indices_backward.h>

#include <algorithm>
#include <limits>

#include "accelerator/device.h"
#include "kernels/launch.h"
#include "kernels/operations.h"

namespace mnist_train::kernels {

namespace {

constexpr unsigned kBackwardThreads = 512;     // of a block, at most
constexpr unsigned kMostBackwardBlocks = 264;  // two per multiprocessor of an H100

bool is_planar(const at::Tensor& pooled) {
  return !pooled.is_contiguous(at::MemoryFormat::ChannelsLast);
}

/// Returns the number of adjacent channels of a thread: as many as one access can load, 16 bytes or
/// less, depending on the alignment of the tensors.
unsigned channels_per_thread(std::int64_t channels, const at::Tensor& values,
                             const at::Tensor& others) {
  const std::int64_t bytes = values.element_size();
  std::int64_t size = 16 / bytes;
  while (channels % size != 0 || !is_aligned(values, size * bytes) ||
         !is_aligned(others, size * bytes)) {
    size /= 2;
  }
  return static_cast<unsigned>(size);
}

}  // namespace

bool can_relu_max_pool(const at::Tensor& x, const at::Tensor& bias) {
  return is_f32_or_bf16(x) && x.dim() == 4 && x.numel() > 0 &&
         x.numel() <= std::numeric_limits<int>::max() && std::min(x.size(2), x.size(3)) >= 2 &&
         (!bias.defined() || (bias.scalar_type() == x.scalar_type() && bias.is_contiguous() &&
                              bias.device() == x.device()));
}

void relu_max_pool(const at::Tensor& x, const at::Tensor& bias, const at::Tensor& out,
                   const at::Tensor& choice) {
  const unsigned size = channels_per_thread(x.size(1), x, out);
  launch(name_for("relu_max_pool", x.scalar_type()), {blocks_for(out.numel() / size), kThreads}, x,
         bias, as_int(x.size(0)), as_int(x.size(2)), as_int(x.size(3)), as_int(x.size(1)),
         is_planar(out), as_int(size), out, choice);
}

void relu_max_pool_backward(const at::Tensor& gradient, const at::Tensor& choice,
                            const at::Tensor& into, const at::Tensor& bias_gradient) {
  const unsigned size = channels_per_thread(into.size(1), gradient, into);
  const auto groups = static_cast<unsigned>(into.size(1)) / size;
  const unsigned rows = std::max(kBackwardThreads / groups, 1U);
  const unsigned threads = (std::min(rows * groups, kBackwardThreads) + kWarp - 1) / kWarp * kWarp;
  const std::int64_t windows = into.size(0) * ((into.size(2) + 1) / 2) * ((into.size(3) + 1) / 2);
  const auto blocks = static_cast<unsigned>(
      std::min<std::int64_t>((windows + rows - 1) / rows, kMostBackwardBlocks));
  at::Tensor partial_sums;
  if (bias_gradient.defined()) {
    partial_sums = at::empty({blocks, into.size(1)}, into.options().dtype(at::kFloat));
  }
  launch(name_for("relu_max_pool_backward", into.scalar_type()), {blocks, threads}, gradient,
         choice, as_int(into.size(0)), as_int(into.size(2)), as_int(into.size(3)),
         as_int(into.size(1)), is_planar(gradient), as_int(size), into, bias_gradient, partial_sums,
         arrived_blocks());
}

void check_relu_max_pool(Agreement& agreement) {
  constexpr auto kChannelsLast = at::MemoryFormat::ChannelsLast;
  constexpr std::int64_t kImages = 5;
  constexpr std::int64_t kSide = 7;
  const auto check = [&](at::ScalarType type, std::int64_t channels,
                         at::MemoryFormat pooled_format) {
    const at::Tensor x = known_values({kImages, channels, kSide, kSide}).to(type);
    const at::Tensor bias = known_values({channels}).to(type);
    const at::Tensor gradient = known_values({kImages, channels, kSide / 2, kSide / 2}).to(type);
    const at::Tensor on_device = agreement.here(x.contiguous(kChannelsLast));
    const at::Tensor gradient_on_device = agreement.here(gradient.contiguous(pooled_format));
    const at::Tensor out = at::empty_like(gradient_on_device);
    const at::Tensor choice =
        at::empty(out.sizes(), out.options().dtype(at::kByte).memory_format(kChannelsLast));
    const at::Tensor into = at::empty_like(on_device);
    const at::Tensor bias_on_device = agreement.here(bias);
    const at::Tensor bias_gradient = at::empty_like(bias_on_device);
    relu_max_pool(on_device, bias_on_device, out, choice);
    relu_max_pool_backward(gradient_on_device, choice, into, bias_gradient);

    const at::Tensor added = (x + bias.view({-1, 1, 1})).to(at::kFloat);
    const auto [pooled, indices] = at::max_pool2d_with_indices(added, 2);
    const at::Tensor of_pooled = gradient.to(at::kFloat) * pooled.gt(0);
    const at::Tensor of_x = at::max_pool2d_with_indices_backward(of_pooled, added, 2, 2, 0, 1,
                                                                 /*ceil_mode=*/false, indices);
    agreement.add("values", out, pooled.clamp_min(0), type);
    agreement.add("gradient", into, of_x, type);
    agreement.add("gradient of the bias", bias_gradient, of_x.sum({0, 2, 3}), type);
  };
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
    for (const std::int64_t channels : {5, 10, 12, 64}) {
      check(type, channels, kChannelsLast);
      check(type, channels, at::MemoryFormat::Contiguous);
    }
  }
}

}  // namespace mnist_train::kernels
