#pragma once

#include <ATen/core/Tensor.h>

#include <unordered_map>
#include <utility>

namespace mnist_train::models {

/// Destination buffers for a layer's gradients; undefined: allocate new tensors.
struct WantedGradients {
  at::Tensor weight;
  at::Tensor bias;
};

/// Destination buffers for the gradients of parameters. A layer may write a gradient there and
/// return a view of the buffer, which autograd adopts; other gradients are copied later.
class GradientPlaces {
 public:
  /// Sets the buffer for the parameter's next gradient, with its type and layout; undefined: none.
  void set(const at::Tensor& parameter, at::Tensor place) {
    places_[parameter.unsafeGetTensorImpl()] = std::move(place);
  }
  /// Returns the buffers for a layer's next gradients, only once: a second gradient of the same
  /// parameter is added to the first.
  WantedGradients take(const at::Tensor& weight, const at::Tensor& bias) {
    return {take(weight), take(bias)};
  }

 private:
  at::Tensor take(const at::Tensor& parameter) {
    const auto found = places_.find(parameter.unsafeGetTensorImpl());
    return found == places_.end() ? at::Tensor() : std::exchange(found->second, {});
  }

  std::unordered_map<const at::TensorImpl*, at::Tensor> places_;
};

}  // namespace mnist_train::models
