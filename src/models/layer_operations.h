#pragma once

#include <ATen/core/Tensor.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/linear.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>

#include "cpu_kernels/kernels.h"
#include "kernels/operations.h"
#include "network/network.h"
#include "settings/model_options.h"

/// Activation functions, layer operations that LibTorch lacks or computes with several GPU kernels,
/// and networks that run on cpu_kernels/.
namespace mnist_train::models {

class GradientDestinations;

/// An activation function in cpu_kernels/ and in LibTorch.
struct ActivationFunction {
  std::optional<cpu_kernels::ActivationSpec> engine;  // nullopt if only LibTorch has it
  std::function<at::Tensor(const at::Tensor& x)> libtorch;
};
ActivationFunction activation_function(const settings::ActivationLayer& layer);

/// Returns x [N,...] with each element set to 0 with probability `p`, and kept elements divided by
/// 1 - p. The decision is based on a hash of the sample's seed (`seeds` [N] i64), the dropout
/// layer's index `layer` and the element's index, so it is independent of batch, device and layout.
/// cpu_kernels/ makes the same decisions.
at::Tensor hashed_dropout(const at::Tensor& x, const at::Tensor& seeds, std::int64_t layer,
                          double p);

/// Returns the output of a linear layer followed by an activation. Values and gradients match
/// LibTorch's up to rounding; on a GPU, a kernel may compute the gradients of activation and bias.
at::Tensor linear_activation(torch::nn::LinearImpl& layer, kernels::LinearFunction function,
                             const at::Tensor& x);

/// These return the output of a layer for images [N,C,H,W], with and without its bias. On a GPU,
/// custom kernels compute the convolutions that they support, depthwise ones and those of
/// single-channel images, because cuDNN would compile code for each of them in every run.
at::Tensor convolve(torch::nn::Conv2dImpl& layer, const at::Tensor& images);
at::Tensor convolve_without_bias(const torch::nn::Conv2dImpl& layer, const at::Tensor& images);

/// Returns `max_pool2d(relu(x + bias), 2)` [N,C,H/2,W/2] of x [N,C,H,W] and bias [C], which may be
/// undefined; an odd last row or column is dropped. With `flatten`, returns vectors [N,C*H/2*W/2].
/// Values and gradients match LibTorch's, including NaN, except that zeros are always +0. On a GPU,
/// a single kernel, in fp32 or bf16, does all of this and flattens without a copy.
at::Tensor relu_max_pool(const at::Tensor& x, const at::Tensor& bias = {}, bool flatten = false);

/// Returns `relu_max_pool(layer(images), {}, flatten)` of images [N,C,H,W]. On a GPU, adding the
/// bias is fused with ReLU and pooling.
at::Tensor convolve_relu_max_pool(torch::nn::Conv2dImpl& layer, const at::Tensor& images,
                                  bool flatten = false);

/// Consecutive layers that cpu_kernels/ computes: as one autograd operation if any gradient has a
/// destination buffer, otherwise as one operation per layer with parameters.
struct CpuNetwork {
  std::size_t layers = 0;  // number of leading layers computed; may be 0
  /// Returns the output for x [N,C,H,W] or [N,F], or an undefined tensor if LibTorch must do it
  /// because x is not on a CPU with the required instructions, x or weights have an unexpected
  /// type, shape or layout, or x has too few images for a pass without gradients. The backward pass
  /// writes to `destinations` and must precede the next `forward` with gradients. If `training`,
  /// applies dropout with `seeds` [N] i64 and is collective with synchronised batch norms.
  std::function<at::Tensor(const at::Tensor& x, GradientDestinations& destinations, bool training,
                           const at::Tensor& seeds)>
      forward;
};

using ModuleLookup =
    std::function<std::shared_ptr<torch::nn::Module>(const network::SizedLayer& sized)>;

/// Returns a network of as many leading layers as possible, or of none if fewer than two of them
/// are convolutions or linear layers, because converting input and output would then cost more than
/// the network saves. `dropouts` is the number of dropout layers before `layers`.
CpuNetwork make_cpu_network(std::span<const network::SizedLayer* const> layers,
                            std::int64_t dropouts, const ModuleLookup& find_module);

}  // namespace mnist_train::models
