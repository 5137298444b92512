#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>

#include "kernels/selection.h"
#include "models/bf16_convolution.h"
#include "models/convolution.h"
#include "models/pooled_convolution.h"
#include "models/relu_max_pool.h"

namespace mnist_train::models {

namespace {

constexpr auto kChannelsLast = at::MemoryFormat::ChannelsLast;

/// Returns the fastest way for a layer with these weights [out,in,kernel,kernel] on this processor,
/// or null where it has none. AMX should be faster where a layer fills two of its registers with
/// output channels and four with weights; that bound was not measured.
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

/// Returns whether the kernel for GPUs adds the bias.
bool adds_bias_later(const torch::nn::Conv2dImpl& layer, const at::Tensor& images) {
  return kernels::is_used(kernels::Operation::kReluMaxPool, images.device()) &&
         can_convolve_without_bias(layer, images);
}

bool in_one_host_kernel(const torch::nn::Conv2dImpl& layer, const at::Tensor& images) {
  return images.is_cpu() && images.scalar_type() == layer.weight.scalar_type() &&
         has_host_convolve_relu_max_pool(layer) && fits(layer, images);
}

at::Tensor convolve_in_one_host_kernel(const torch::nn::Conv2dImpl& layer, const at::Tensor& images,
                                       GradientPlaces& places, bool planar) {
  WantedGradients wanted;
  if (at::GradMode::is_enabled()) wanted = places.take(layer.weight, layer.bias);
  return ConvolveReluMaxPool::apply(images, layer.weight, layer.bias, wanted, planar);
}

}  // namespace

bool has_host_convolve_relu_max_pool(const torch::nn::Conv2dImpl& layer) {
  return layer.weight.is_cpu() && passes(layer.weight) != nullptr && fits(layer) &&
         !kernels::is_used(kernels::Operation::kReluMaxPool, layer.weight.device());
}

at::Tensor convolve_relu_max_pool(torch::nn::Conv2d& layer, const at::Tensor& images,
                                  GradientPlaces& places) {
  if (adds_bias_later(*layer, images)) {
    return bias_relu_max_pool(convolve_without_bias(*layer, images), layer->bias);
  }
  return in_one_host_kernel(*layer, images)
             ? convolve_in_one_host_kernel(*layer, images, places, /*planar=*/false)
             : relu_max_pool(layer->forward(images));
}

at::Tensor convolve_relu_max_pool_flatten(torch::nn::Conv2d& layer, const at::Tensor& images,
                                          GradientPlaces& places) {
  if (adds_bias_later(*layer, images)) {
    return bias_relu_max_pool(convolve_without_bias(*layer, images), layer->bias, /*planar=*/true)
        .flatten(1);
  }
  return in_one_host_kernel(*layer, images)
             ? convolve_in_one_host_kernel(*layer, images, places, /*planar=*/true).flatten(1)
             : convolve_relu_max_pool(layer, images, places).flatten(1);
}

}  // namespace mnist_train::models
