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

/// Destination buffers of a layer's gradients; undefined ones stand for new tensors.
struct WantedGradients {
  using SavedData = ska::flat_hash_map<std::string, at::IValue>;  // of autograd's contexts

  at::Tensor weight;
  at::Tensor bias;

  /// Puts them where the backward pass finds them. They are not saved as variables, since others
  /// write to them before that.
  void save(SavedData& to) const {
    to["weight"] = weight;
    to["bias"] = bias;
  }
  static WantedGradients saved(const SavedData& from) {
    return {from.at("weight").toTensor(), from.at("bias").toTensor()};
  }
};

/// Returns a tensor for a layer to write a gradient to: a view of `place`, or a new one where that
/// is undefined. Autograd takes tensors that nobody else has, and copies all others.
inline at::Tensor gradient_tensor(const at::Tensor& place, at::IntArrayRef sizes,
                                  const at::TensorOptions& options) {
  return place.defined() ? place.detach() : at::empty(sizes, options);
}

/// Destination buffers of the gradients of parameters. A layer that computes one may write it there
/// and return a view of the buffer, which autograd takes as it is; all others are copied later.
class GradientPlaces {
 public:
  /// The next gradient of `parameter` is wanted in `place`, which is of its type and laid out like
  /// it, or, if that is undefined, anywhere.
  void set(const at::Tensor& parameter, at::Tensor place) {
    places_[parameter.unsafeGetTensorImpl()] = std::move(place);
  }
  /// Returns the buffers for a layer's next gradients, once: a second gradient of the same
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
