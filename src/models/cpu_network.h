#pragma once

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>

#include "models/gradient_places.h"
#include "network/network.h"

namespace mnist_train::models {

/// Consecutive layers that cpu_kernels/ computes as one operation of autograd.
class CpuNetwork {
 public:
  using ModuleOf =
      std::function<std::shared_ptr<torch::nn::Module>(const network::SizedLayer& sized)>;

  virtual ~CpuNetwork() = default;

  /// Returns the number of layers. They are the first ones that `make_cpu_network` was given.
  virtual std::size_t layers() const = 0;
  /// Returns whether this CPU has the instructions, and whether x has the type of the weights, the
  /// planned shape, and enough images. If not, LibTorch has to compute the layers.
  virtual bool can_compute(const at::Tensor& x) const = 0;
  /// Returns the output for x [N,C,H,W] or [N,F]. The backward pass must come before the next
  /// `forward`; it writes gradients to `places`. With `training`, there is dropout, by `seeds` [N]
  /// i64. Collective if a batch norm is synchronized.
  virtual at::Tensor forward(const at::Tensor& x, GradientPlaces& places, bool training,
                             const at::Tensor& seeds) = 0;
};

/// Returns the longest network of the first layers; null if it would have fewer than two layers
/// with weights, which do not pay for the conversion of input and output. `dropouts`: dropout
/// layers before them.
std::unique_ptr<CpuNetwork> make_cpu_network(std::span<const network::SizedLayer* const> layers,
                                             std::int64_t dropouts,
                                             const CpuNetwork::ModuleOf& module_of);

}  // namespace mnist_train::models
