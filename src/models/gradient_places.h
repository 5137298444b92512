#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>
#include <ATen/ops/empty.h>
#include <c10/util/flat_hash_map.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

namespace mnist_train::models {

/// Destination buffers of a layer's gradients; undefined: allocate new tensors.
struct WantedGradients {
  using SavedData = ska::flat_hash_map<std::string, at::IValue>;  // of autograd's contexts

  at::Tensor weight;
  at::Tensor bias;

  /// Stores them for the backward pass; not as variables, because others write to them before.
  void save(SavedData& to) const {
    to["weight"] = weight;
    to["bias"] = bias;
  }
  static WantedGradients saved(const SavedData& from) {
    return {from.at("weight").toTensor(), from.at("bias").toTensor()};
  }
};

/// Returns a tensor for a gradient: a view of `place`, or a new tensor if that is undefined.
/// Autograd takes over tensors without other owners, and copies all others.
inline at::Tensor gradient_tensor(const at::Tensor& place, at::IntArrayRef sizes,
                                  const at::TensorOptions& options) {
  return place.defined() ? place.detach() : at::empty(sizes, options);
}

/// Destination buffers of the gradients of parameters. A layer may write a gradient there and
/// return a view of the buffer, which autograd takes over; other gradients are copied later.
class GradientPlaces {
 public:
  /// Sets the buffer, with type and layout of the parameter, of its next gradient; undefined: none.
  void set(const at::Tensor& parameter, at::Tensor place) {
    places_[parameter.unsafeGetTensorImpl()] = std::move(place);
  }
  /// Returns the buffers of a layer's next gradients, once: a second gradient of the same parameter
  /// is added to the first.
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
