#pragma once

#include <ATen/core/Tensor.h>

#include <unordered_map>
#include <utility>

namespace mnist_train::models {

/// Where the gradients of parameters are wanted. A layer that computes one may write it there and
/// return a view of the place, which autograd takes as it is; all others are copied later.
class GradientPlaces {
 public:
  /// The next gradient of `parameter` is wanted in `place`, which is of its type and laid out like
  /// it; undefined: anywhere.
  void set(const at::Tensor& parameter, at::Tensor place) {
    places_[parameter.unsafeGetTensorImpl()] = std::move(place);
  }
  /// Returns the place of the next gradient, or an undefined tensor. It is given away once, since a
  /// second gradient of the same parameter is to be added to the first.
  at::Tensor take(const at::Tensor& parameter) {
    const auto found = places_.find(parameter.unsafeGetTensorImpl());
    return found == places_.end() ? at::Tensor() : std::exchange(found->second, at::Tensor());
  }

 private:
  std::unordered_map<const at::TensorImpl*, at::Tensor> places_;
};

}  // namespace mnist_train::models
