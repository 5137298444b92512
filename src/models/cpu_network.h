#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>

#include "network/network.h"

namespace mnist_train::models {

class GradientDestinations;

/// Consecutive layers that cpu_kernels/ computes as one autograd operation.
struct CpuNetwork {
  std::size_t layers = 0;  // number of leading layers computed; 0: none
  /// Returns the output for x [N,C,H,W] or [N,F], or an undefined tensor if LibTorch must compute
  /// it: unless this CPU supports the instructions and x has the type of the weights, the planned
  /// shape and enough images. The backward pass must precede the next `forward`; it writes
  /// gradients to `destinations`. With `training`, applies dropout with `seeds` [N] i64. Collective
  /// if a batch norm is synchronized.
  std::function<at::Tensor(const at::Tensor& x, GradientDestinations& destinations, bool training,
                           const at::Tensor& seeds)>
      forward;
};

using ModuleOf =
    std::function<std::shared_ptr<torch::nn::Module>(const network::SizedLayer& sized)>;

/// Returns the network for the longest possible run of leading layers; none if it has fewer than
/// two layers with weights, too few to pay for converting input and output. `dropouts`: number of
/// dropout layers before `layers`.
CpuNetwork make_cpu_network(std::span<const network::SizedLayer* const> layers,
                            std::int64_t dropouts, const ModuleOf& module_of);

}  // namespace mnist_train::models
