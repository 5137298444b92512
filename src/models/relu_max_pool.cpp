#include "models/relu_max_pool.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/max_pool2d.h>
#include <ATen/ops/relu.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <limits>
#include <optional>

#include "base/parallel.h"
#include "kernels/operations.h"
#include "models/bf16_convolution.h"
#include "models/convolution.h"
#include "models/pooled_convolution.h"
#include "models/relu_max_pool_rows.h"
#include "models/tensor_memory.h"

namespace mnist_train::models {

namespace {

constexpr std::int64_t kPooledPerTask = 4;
constexpr std::uint8_t kNone = 4;

template <class Bits>
constexpr Bits kInfinity = sizeof(Bits) == 4 ? static_cast<Bits>(0x7f800000)
                                             : static_cast<Bits>(0x7f80);

/// Returns the bits as an integer with the order of the values; NaNs become the largest.
template <class Bits>
Bits ordered(Bits bits) {
  constexpr Bits kLargest = std::numeric_limits<Bits>::max();
  return static_cast<Bits>(bits & kLargest) > kInfinity<Bits> ? kLargest : bits;
}

template <class Bits>
void take_larger(Bits value, Bits place, Bits& best, Bits& which) {
  which = value > best ? place : which;
  best = value > best ? value : best;
}

template <class Bits>
void pool_row(const Bits* top, const Bits* bottom, Bits* out, std::uint8_t* choice,
              std::int64_t width, std::int64_t channels) {
  for (std::int64_t x = 0; x < width; ++x) {
    const Bits* a = top + 2 * x * channels;
    const Bits* b = bottom + 2 * x * channels;
    for (std::int64_t c = 0; c < channels; ++c) {
      Bits best = 0;
      Bits which = kNone;
      take_larger<Bits>(ordered(a[c]), 0, best, which);
      take_larger<Bits>(ordered(a[c + channels]), 1, best, which);
      take_larger<Bits>(ordered(b[c]), 2, best, which);
      take_larger<Bits>(ordered(b[c + channels]), 3, best, which);
      out[x * channels + c] = best;
      choice[x * channels + c] = static_cast<std::uint8_t>(which);
    }
  }
}

template <class Bits>
void spread_row(const Bits* gradient, const std::uint8_t* choice, Bits* top, Bits* bottom,
                std::int64_t width, std::int64_t channels) {
  std::fill_n(top, 2 * width * channels, Bits{0});
  std::fill_n(bottom, 2 * width * channels, Bits{0});
  for (std::int64_t x = 0; x < width; ++x) {
    Bits* const a = top + 2 * x * channels;
    Bits* const b = bottom + 2 * x * channels;
    Bits* const places[] = {a, a + channels, b, b + channels};
    for (std::int64_t c = 0; c < channels; ++c) {
      const std::uint8_t which = choice[x * channels + c];
      const Bits value = gradient[x * channels + c];
      places[which % 4][c] = which == kNone ? Bits{0} : value;  // without a branch to mispredict
    }
  }
}

/// Calls `work(bits, i)` for each image i of a batch, on several threads; the type of `bits` is
/// that of the bits of `x`.
template <class Work>
void for_each_image(const at::Tensor& x, const Work& work) {
  const bool is_fp32 = x.scalar_type() == at::kFloat;
  parallel_for(0, x.size(0), kPooledPerTask, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) {
      is_fp32 ? work(std::int32_t{}, i) : work(std::int16_t{}, i);
    }
  });
}

PooledImage image_of(const at::Tensor& x) { return {x.size(2), x.size(3), x.size(1)}; }

void pool_images(const at::Tensor& x, const at::Tensor& out, const at::Tensor& choice) {
  const PooledImage image = image_of(x);
  for_each_image(x, [&](auto bits, std::int64_t i) {
    using Bits = decltype(bits);
    const std::int64_t pooled = i * image.out_size();
    pool_image(image, memory_of<Bits>(x) + i * image.in_size(), memory_to<Bits>(out) + pooled,
               choice.data_ptr<std::uint8_t>() + pooled);
  });
}

void spread_images(const at::Tensor& gradient, const at::Tensor& choice, const at::Tensor& into) {
  const PooledImage image = image_of(into);
  if (image.height % 2 != 0 || image.width % 2 != 0) into.zero_();
  for_each_image(into, [&](auto bits, std::int64_t i) {
    using Bits = decltype(bits);
    const std::int64_t pooled = i * image.out_size();
    spread_image(image, memory_of<Bits>(gradient) + pooled,
                 choice.const_data_ptr<std::uint8_t>() + pooled,
                 memory_to<Bits>(into) + i * image.in_size());
  });
}

at::MemoryFormat format_of_pooled(bool planar) {
  return planar ? at::MemoryFormat::Contiguous : kChannelsLast;
}

class ReluMaxPool : public torch::autograd::Function<ReluMaxPool> {
 public:
  /// Only the GPU kernel supports a bias and planar output.
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& input,
                            const std::optional<at::Tensor>& bias, bool by_gpu_kernel,
                            bool planar) {
    const at::Tensor x = input.contiguous(kChannelsLast);
    const std::vector<std::int64_t> sizes{x.size(0), x.size(1), x.size(2) / 2, x.size(3) / 2};
    at::Tensor out = at::empty(sizes, x.options().memory_format(format_of_pooled(planar)));
    const at::Tensor choice =
        at::empty(sizes, x.options().dtype(at::kByte).memory_format(kChannelsLast));
    if (by_gpu_kernel) {
      kernels::relu_max_pool(x, bias.value_or(at::Tensor()), out, choice);
    } else {
      pool_images(x, out, choice);
    }
    context->save_for_backward({choice});
    context->saved_data["height"] = x.size(2);
    context->saved_data["width"] = x.size(3);
    context->saved_data["by_gpu_kernel"] = by_gpu_kernel;
    context->saved_data["has_bias"] = bias.has_value();
    context->saved_data["planar"] = planar;
    return out;
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 const torch::autograd::variable_list& gradients) {
    const at::Tensor choice = context->get_saved_variables()[0];
    const at::Tensor gradient =
        gradients[0].contiguous(format_of_pooled(context->saved_data["planar"].toBool()));
    const std::int64_t height = context->saved_data["height"].toInt();
    const std::int64_t width = context->saved_data["width"].toInt();
    at::Tensor into = at::empty({gradient.size(0), gradient.size(1), height, width},
                                gradient.options().memory_format(kChannelsLast));
    at::Tensor bias_gradient;
    if (context->saved_data["by_gpu_kernel"].toBool()) {
      if (context->saved_data["has_bias"].toBool() && context->needs_input_grad(1)) {
        bias_gradient = at::empty({into.size(1)}, into.options());
      }
      kernels::relu_max_pool_backward(gradient, choice, into, bias_gradient);
    } else {
      spread_images(gradient, choice, into);
    }
    return {into, bias_gradient, {}, {}};
  }
};

/// Returns the fastest kernels for a layer with these weights [out,in,kernel,kernel] on this
/// processor, or null. AMX should be faster if a layer fills two of its registers with output
/// channels and four with weights; that bound was not measured.
const PooledConvolutionPasses* passes(const at::Tensor& weight) {
  constexpr std::int64_t kChannels = 32;
  constexpr std::int64_t kWeights = 128;
  const bool fills_amx = weight.size(0) >= kChannels && weight.numel() / weight.size(0) >= kWeights;
  return fills_amx && weight.scalar_type() == at::kBFloat16 && multiplies_by_amx()
             ? image_by_image(weight.scalar_type())
             : images_in_lanes(weight.scalar_type());
}

class ConvolveReluMaxPool : public torch::autograd::Function<ConvolveReluMaxPool> {
 public:
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& input,
                            const at::Tensor& weight, const at::Tensor& bias,
                            const WantedGradients& wanted, bool planar) {
    const at::Tensor weights = weight.contiguous(kChannelsLast);
    PooledConvolution result = passes(weight)->forward(input.contiguous(kChannelsLast), weights,
                                                       bias.contiguous(), planar);
    context->save_for_backward({result.images, result.choice, weights});
    wanted.save(context->saved_data);
    context->saved_data["planar"] = planar;
    return result.out;
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 const torch::autograd::variable_list& gradients) {
    const torch::autograd::variable_list saved = context->get_saved_variables();
    const bool planar = context->saved_data["planar"].toBool();
    const at::Tensor& weights = saved[2];
    PooledConvolutionGradients result = passes(weights)->backward(
        {.images = saved[0],
         .choice = saved[1],
         .weights = weights,
         .gradient = gradients[0].contiguous(planar ? at::MemoryFormat::Contiguous : kChannelsLast),
         .planar = planar,
         .wants_images = context->needs_input_grad(0),
         .wants_parameters = context->needs_input_grad(1) || context->needs_input_grad(2),
         .wanted = WantedGradients::saved(context->saved_data)});
    return {std::move(result.images), std::move(result.weights), std::move(result.bias), {}, {}};
  }
};

bool all_are(const torch::ExpandingArray<2>& values, std::int64_t wanted) {
  return std::all_of(values->begin(), values->end(),
                     [&](std::int64_t value) { return value == wanted; });
}

bool fits(const torch::nn::Conv2dImpl& layer) {
  const auto& options = layer.options;
  const auto* padding = std::get_if<torch::ExpandingArray<2>>(&options.padding());
  return padding != nullptr && all_are(*padding, 0) && all_are(options.stride(), 1) &&
         all_are(options.dilation(), 1) && options.groups() == 1 && options.bias() &&
         all_are(options.kernel_size(), options.kernel_size()->front());
}

bool fits(const torch::nn::Conv2dImpl& layer, const at::Tensor& images) {
  return images.dim() == 4 && images.size(1) == layer.options.in_channels() &&
         std::min(images.size(2), images.size(3)) >= layer.options.kernel_size()->front();
}

}  // namespace

template <class Bits>
const PoolRows<Bits>& portable_pool_rows() {
  static constexpr PoolRows<Bits> kRows{&pool_row<Bits>, &spread_row<Bits>};
  return kRows;
}
template const PoolRows<std::int32_t>& portable_pool_rows();
template const PoolRows<std::int16_t>& portable_pool_rows();

at::Tensor relu_max_pool(const at::Tensor& x, const at::Tensor& bias, bool flatten) {
  const bool by_gpu_kernel = kernels::is_used(kernels::Operation::kReluMaxPool, x.device()) &&
                             kernels::can_relu_max_pool(x, bias);
  if (bias.defined() && !by_gpu_kernel) {
    return relu_max_pool(x + bias.view({-1, 1, 1}), /*bias=*/{}, flatten);
  }
  const bool by_host_kernel =
      x.is_cpu() && (x.scalar_type() == at::kFloat || x.scalar_type() == at::kBFloat16);
  // ReLU after the pooling gives the same values and gradients as before it, with a quarter of the
  // elements.
  const at::Tensor out =
      by_gpu_kernel || by_host_kernel
          ? ReluMaxPool::apply(x, bias.defined() ? std::optional(bias) : std::nullopt,
                               by_gpu_kernel, by_gpu_kernel && flatten)
          : at::relu(at::max_pool2d(x, 2));
  return flatten ? out.flatten(1) : out;
}

bool has_host_convolve_relu_max_pool(const torch::nn::Conv2dImpl& layer) {
  return layer.weight.is_cpu() && passes(layer.weight) != nullptr && fits(layer) &&
         !kernels::is_used(kernels::Operation::kReluMaxPool, layer.weight.device());
}

at::Tensor convolve_relu_max_pool(torch::nn::Conv2dImpl& layer, const at::Tensor& images,
                                  GradientPlaces& places, bool flatten) {
  if (kernels::is_used(kernels::Operation::kReluMaxPool, images.device()) &&
      can_convolve_without_bias(layer, images)) {
    return relu_max_pool(convolve_without_bias(layer, images), layer.bias, flatten);
  }
  const bool fused = images.is_cpu() && images.scalar_type() == layer.weight.scalar_type() &&
                     has_host_convolve_relu_max_pool(layer) && fits(layer, images);
  if (!fused) return relu_max_pool(layer.forward(images), /*bias=*/{}, flatten);
  WantedGradients wanted;
  if (at::GradMode::is_enabled()) wanted = places.take(layer.weight, layer.bias);
  const at::Tensor out =
      ConvolveReluMaxPool::apply(images, layer.weight, layer.bias, wanted, /*planar=*/flatten);
  return flatten ? out.flatten(1) : out;
}

}  // namespace mnist_train::models
