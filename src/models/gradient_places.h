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

/// Where a layer's gradients are wanted: one of each shard of its batch, in places that are
/// undefined where any other will do.
struct WantedGradients {
  using SavedData = ska::flat_hash_map<std::string, at::IValue>;  // of autograd's contexts

  std::vector<at::Tensor> weights;
  std::vector<at::Tensor> biases;
  std::vector<std::int64_t> ends;  // how many of the batch's samples come before each shard's end

  /// Returns that all gradients of a batch of one shard may lie anywhere.
  static WantedGradients anywhere(std::int64_t samples) { return {{{}}, {{}}, {samples}}; }

  /// Puts it where the backward pass finds it. The places are not saved as variables, since others
  /// write to them before that.
  void save(SavedData& to) const {
    to["weights"] = weights;
    to["biases"] = biases;
    to["ends"] = ends;
  }
  static WantedGradients saved(const SavedData& from) {
    return {from.at("weights").toTensorVector(), from.at("biases").toTensorVector(),
            from.at("ends").toIntVector()};
  }

  /// Calls `work(shard, begin, samples)` for all shards of the batch, in their order.
  template <class Work>
  void for_each(const Work& work) const {
    std::int64_t begin = 0;
    for (std::size_t shard = 0; shard < ends.size(); begin = ends[shard++]) {
      work(shard, begin, ends[shard] - begin);
    }
  }
};

/// Returns a tensor for a layer to write a gradient to: a view of `place`, or a new one where that
/// is undefined. Autograd takes tensors that nobody else has, and copies all others.
inline at::Tensor gradient_tensor(const at::Tensor& place, at::IntArrayRef sizes,
                                  const at::TensorOptions& options) {
  return place.defined() ? place.detach() : at::empty(sizes, options);
}

/// Where the gradients of parameters are wanted. A layer that computes one may write it there and
/// return a view of the place, which autograd takes as it is; all others are copied later. Where a
/// batch consists of several shards, such a layer writes the gradient that each of them gives to a
/// place of its own, and returns the first.
class GradientPlaces {
 public:
  /// The next gradients of `parameter` are wanted in `places`, which are of its type and laid out
  /// like it: one for each shard of a batch, or none.
  void set(const at::Tensor& parameter, std::vector<at::Tensor> places) {
    places_[parameter.unsafeGetTensorImpl()] = std::move(places);
  }
  /// The shards of the next batches end behind so many of their samples.
  void set_ends(std::vector<std::int64_t> ends) { ends_ = std::move(ends); }
  /// Returns where the gradients are wanted that a layer makes from a batch of so many samples.
  /// Places are given away once, since a second gradient of the same parameter is to be added to
  /// the first.
  WantedGradients take(const at::Tensor& weight, const at::Tensor& bias, std::int64_t samples) {
    WantedGradients wanted{take(weight), take(bias), ends_};
    if (wanted.weights.empty() && wanted.biases.empty()) return WantedGradients::anywhere(samples);
    wanted.weights.resize(ends_.size());
    wanted.biases.resize(ends_.size());
    return wanted;
  }

 private:
  std::vector<at::Tensor> take(const at::Tensor& parameter) {
    const auto found = places_.find(parameter.unsafeGetTensorImpl());
    if (found == places_.end()) return {};
    return std::exchange(found->second, {});
  }

  std::unordered_map<const at::TensorImpl*, std::vector<at::Tensor>> places_;
  std::vector<std::int64_t> ends_;
};

}  // namespace mnist_train::models
