#include "models/layer_operations.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/conv2d.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/hardsigmoid.h>
#include <ATen/ops/hardswish.h>
#include <ATen/ops/leaky_relu.h>
#include <ATen/ops/max_pool2d.h>
#include <ATen/ops/relu.h>
#include <ATen/ops/relu6.h>
#include <ATen/ops/sigmoid.h>
#include <ATen/ops/silu.h>
#include <ATen/ops/tanh.h>
#include <torch/nn/functional/conv.h>

#include <algorithm>
#include <array>

namespace mnist_train::models {

namespace {

using kernels::LinearFunction;

constexpr std::int64_t kLow32 = 0xffffffff;

/// Applies the hash lowbias32 to the values of an i64 tensor, which must be below 2^32.
at::Tensor lowbias32(at::Tensor bits) {
  constexpr std::int64_t kFactor1 = cpu_kernels::kHashFactor1;
  constexpr std::int64_t kFactor2 = cpu_kernels::kHashFactor2;
  bits = bits.bitwise_xor(bits.bitwise_right_shift(16));
  bits = (bits * kFactor1).bitwise_and(kLow32);
  bits = bits.bitwise_xor(bits.bitwise_right_shift(15));
  bits = (bits * kFactor2).bitwise_and(kLow32);
  return bits.bitwise_xor(bits.bitwise_right_shift(16));
}

/// Returns the layer's output without the bias; undefined if the kernels cannot compute it.
at::Tensor convolve_with_kernels(const torch::nn::Conv2dImpl& layer, const at::Tensor& images) {
  const auto& options = layer.options;
  const auto* const padding = std::get_if<torch::ExpandingArray<2>>(&options.padding());
  const auto is_square = [](const torch::ExpandingArray<2>& sides) {
    return sides->at(0) == sides->at(1);
  };
  if (!kernels::are_used(images.device()) || options.groups() != options.in_channels() ||
      padding == nullptr || !is_square(*padding) || !is_square(options.kernel_size()) ||
      !is_square(options.stride()) || options.dilation()->at(0) != 1 ||
      options.dilation()->at(1) != 1) {
    return {};
  }
  const kernels::ChannelConvolution convolution{options.kernel_size()->at(0),
                                                options.stride()->at(0), (*padding)->at(0)};
  if (!kernels::supports_convolution(convolution, images, layer.weight)) return {};
  return kernels::convolve(convolution, images.contiguous(at::MemoryFormat::ChannelsLast),
                           layer.weight);
}

/// Returns whether a tap of the kernel sees only padding, for all outputs along an axis.
bool has_blind_tap(std::int64_t size, std::int64_t out, std::int64_t kernel, std::int64_t stride,
                   std::int64_t padding, std::int64_t dilation) {
  for (std::int64_t tap = 0; tap < kernel; ++tap) {
    bool is_blind = true;
    for (std::int64_t i = 0; i < out && is_blind; ++i) {
      const std::int64_t in = i * stride - padding + tap * dilation;
      is_blind = in < 0 || in >= size;
    }
    if (is_blind) return true;
  }
  return false;
}

/// Returns the output of a convolution; the bias may be undefined. On CPUs, LibTorch 2.11 uses
/// uninitialised memory if a kernel tap sees only padding, or if an axis has a stride and a single
/// output. Such images are padded explicitly, and such strides are not passed on. It may crash if a
/// kernel axis of size 1 has a dilation or a stride, which are not passed on, either. In bf16,
/// gradients of dilated groups are wrong, so these are computed in fp32.
at::Tensor convolve_with_library(const torch::nn::detail::ConvNdOptions<2>& options,
                                 at::Tensor images, const at::Tensor& weight,
                                 const at::Tensor& bias) {
  const at::ScalarType type = images.scalar_type();
  std::array<std::int64_t, 2> dilation = *options.dilation();
  if (images.is_cpu() && type == at::kBFloat16 && options.groups() > 1 &&
      (dilation[0] > 1 || dilation[1] > 1)) {
    const auto widen = [](const at::Tensor& x) { return x.defined() ? x.to(at::kFloat) : x; };
    return convolve_with_library(options, widen(images), widen(weight), widen(bias)).to(type);
  }
  const auto* const given = std::get_if<torch::ExpandingArray<2>>(&options.padding());
  if (given == nullptr || !images.is_cpu()) {
    return torch::nn::functional::detail::conv2d(images, weight, bias, options.stride(),
                                                 options.padding(), options.dilation(),
                                                 options.groups());
  }
  std::array<std::int64_t, 2> stride = *options.stride();
  std::array<std::int64_t, 2> padding = **given;
  std::array<std::int64_t, 2> extent{};    // padded inputs that outputs see
  std::array<std::int64_t, 2> step{1, 1};  // between the inputs that are kept
  bool pads = false;
  for (std::size_t axis = 0; axis < 2; ++axis) {
    const std::int64_t size = images.size(static_cast<std::int64_t>(axis) + 2);
    const std::int64_t kernel = options.kernel_size()->at(axis);
    if (kernel == 1) dilation[axis] = 1;
    const std::int64_t window = dilation[axis] * (kernel - 1) + 1;
    extent[axis] = size + 2 * padding[axis];
    const std::int64_t out = (extent[axis] - window) / stride[axis] + 1;
    pads = pads || has_blind_tap(size, out, kernel, stride[axis], padding[axis], dilation[axis]);
    if (stride[axis] == 1 || (out > 1 && kernel > 1)) continue;
    pads = true;
    if (kernel == 1) step[axis] = stride[axis];
    stride[axis] = 1;
    if (out == 1) extent[axis] = window;
  }
  if (pads) {
    images = at::constant_pad_nd(images, {padding[1], padding[1], padding[0], padding[0]});
    images = images.slice(2, 0, extent[0], step[0]).slice(3, 0, extent[1], step[1]);
    padding = {0, 0};
  }
  return at::conv2d(images, weight, bias, stride, padding, dilation, options.groups());
}

}  // namespace

ActivationFunction activation_function(const settings::ActivationLayer& layer) {
  using cpu_kernels::Function;
  using settings::Activation;
  switch (layer.function) {
    case Activation::kTanh:
      return {{{Function::kTanh}}, at::tanh};
    case Activation::kRelu:
      return {{{Function::kRelu}}, at::relu};
    case Activation::kSigmoid:
      return {{{Function::kSigmoid}}, at::sigmoid};
    case Activation::kGelu:
      if (!layer.tanh_approximates) {
        return {{{Function::kGelu}}, [](const at::Tensor& x) { return at::gelu(x); }};
      }
      return {{}, [](const at::Tensor& x) { return at::gelu(x, "tanh"); }};
    case Activation::kSilu:
      return {{{Function::kSilu}}, at::silu};
    case Activation::kLeakyRelu:
      return {
          {{Function::kLeakyRelu, static_cast<float>(layer.negative_slope)}},
          [slope = layer.negative_slope](const at::Tensor& x) { return at::leaky_relu(x, slope); }};
    case Activation::kRelu6:
      return {{{Function::kRelu6}}, at::relu6};
    case Activation::kHardswish:
      return {{}, at::hardswish};
    case Activation::kHardsigmoid:
      return {{}, at::hardsigmoid};
  }
  return {};
}

at::Tensor hashed_dropout(const at::Tensor& x, const at::Tensor& seeds, std::int64_t layer,
                          double p) {
  if (p == 0) return x;
  constexpr std::int64_t kIndexFactor = cpu_kernels::kIndexFactor;
  const std::int64_t elements = x.numel() / std::max<std::int64_t>(x.size(0), 1);
  const at::Tensor indices =
      (at::arange(elements, seeds.options()) * kIndexFactor).bitwise_and(kLow32);
  const std::int64_t key = cpu_kernels::dropout_key(layer);
  const at::Tensor low = seeds.bitwise_and(kLow32).bitwise_xor(key).unsqueeze(1);
  const at::Tensor high = seeds.bitwise_right_shift(32).bitwise_and(kLow32).unsqueeze(1);
  const at::Tensor hash = lowbias32((indices + low).bitwise_and(kLow32)).bitwise_xor(high);
  const auto limit = static_cast<std::int64_t>(cpu_kernels::dropout_limit(p));
  const at::Tensor mask = (hash >= limit).to(x.scalar_type()).mul_(1 / (1 - p));
  return x * mask.view(x.sizes());
}

at::Tensor linear_activation(torch::nn::LinearImpl& layer, LinearFunction function,
                             const at::Tensor& x) {
  if (kernels::are_used(x.device()) &&
      kernels::supports_linear_activation(x, layer.weight, layer.bias)) {
    return kernels::linear_activation(function, x, layer.weight, layer.bias);
  }
  const at::Tensor y = layer.forward(x);
  return function == LinearFunction::kRelu ? at::relu(y) : at::tanh(y);
}

at::Tensor convolve_without_bias(const torch::nn::Conv2dImpl& layer, const at::Tensor& images) {
  if (const at::Tensor y = convolve_with_kernels(layer, images); y.defined()) return y;
  return convolve_with_library(layer.options, images, layer.weight, /*bias=*/{});
}

at::Tensor convolve(torch::nn::Conv2dImpl& layer, const at::Tensor& images) {
  if (!layer.bias.defined()) return convolve_without_bias(layer, images);
  const at::Tensor y = convolve_with_kernels(layer, images);
  return y.defined() ? y + layer.bias.view({-1, 1, 1})
                     : convolve_with_library(layer.options, images, layer.weight, layer.bias);
}

at::Tensor relu_max_pool(const at::Tensor& x, const at::Tensor& bias, bool flatten) {
  if (kernels::are_used(x.device()) && kernels::supports_relu_max_pool(x, bias)) {
    const at::Tensor out = kernels::relu_max_pool(x, bias, /*planar=*/flatten);
    return flatten ? out.flatten(1) : out;
  }
  if (bias.defined()) return relu_max_pool(x + bias.view({-1, 1, 1}), /*bias=*/{}, flatten);
  // ReLU after pooling yields the same values and gradients, with a quarter of the elements.
  const at::Tensor out = at::relu(at::max_pool2d(x, 2));
  return flatten ? out.flatten(1) : out;
}

at::Tensor convolve_relu_max_pool(torch::nn::Conv2dImpl& layer, const at::Tensor& images,
                                  bool flatten) {
  if (kernels::are_used(images.device())) {
    return relu_max_pool(convolve_without_bias(layer, images), layer.bias, flatten);
  }
  return relu_max_pool(convolve(layer, images), /*bias=*/{}, flatten);
}

}  // namespace mnist_train::models
