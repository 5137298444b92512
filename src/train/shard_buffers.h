#pragma once

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include <cstdint>
#include <vector>

namespace mnist_train::train {

/// The buffers of a model (running statistics, counters) where a batch is cut into shards: each
/// shard's forward pass starts from the buffers of the step before, and what it changes them by is
/// summed over the shards, weighted by their samples. Counters and other whole numbers follow the
/// first shard. So all ranks get the same buffers, whichever ranks computed the shards.
class ShardBuffers {
 public:
  /// Returns how many f32 elements the changes of a model's buffers are.
  static std::int64_t elements(const torch::nn::Module& model);

  /// `model` is the one that computes.
  explicit ShardBuffers(const torch::nn::Module& model);

  /// Keeps the buffers as they are, for the shards of the step that begins.
  void begin_step();
  /// Gives the model the buffers that were kept.
  void begin_shard();
  /// Writes the change since `begin_shard` to `changes` [elements] f32, where `fraction` is that of
  /// the step's samples that the shard has, and `is_first` says whether it is the first of all.
  void end_shard(const at::Tensor& changes, double fraction, bool is_first) const;
  /// Gives the model the buffers that were kept and adds the summed `changes` to them.
  void end_step(const at::Tensor& changes);

 private:
  std::vector<at::Tensor> buffers_;  // those of floating point first
  std::vector<at::Tensor> kept_;     // like them
  std::int64_t floating_elements_ = 0;
};

}  // namespace mnist_train::train
