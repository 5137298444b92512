#pragma once

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "comm/gradient_averager.h"
#include "models/model.h"
#include "settings/train_options.h"

namespace mnist_train::train {

/// How a step sums the gradients of its shards; by default there is one shard.
struct ShardLayout {
  comm::SummationTree tree = comm::SummationTree::for_ranks(1);  // over all shards of a batch
  int rank = 0;                                                  // the rank of this process
  bool keeps_precision = false;  // bf16 gradients stay bf16 until the reduction
};

/// Consecutive flat values whose parameters have the same settings.
struct ParameterSpan {
  comm::Slice slice;
  settings::ParameterSettings kind;
};

/// All trained parameters of a module in one tensor and all gradients in another, so that averaging
/// takes one all-reduce and the update takes one kernel. The module's own parameters become views:
/// convolution weights with the model's memory format, the rest contiguous. Unless a layer writes
/// to the buffers of `set_destinations`, backward allocates new gradient tensors, which are
/// collected afterwards: this costs less than zeroing views and accumulating into them. Frozen
/// parameters follow the trained ones in `weights` and have no gradients.
class FlatParameters {
 public:
  /// `statistics`: number of scalars stored after the gradients. `module` must be on its device
  /// already. `bf16_copy`: null, or a module for forward and backward, with the same architecture
  /// and device but some parameters in bf16. These become views of a separate buffer (frozen ones,
  /// separate tensors), filled by `refresh_bf16_copy`; its other parameters and all its buffers are
  /// shared with `module`. `kinds`: the settings of each parameter; if empty, the defaults.
  FlatParameters(models::Model& module, std::int64_t statistics,
                 torch::nn::Module* bf16_copy = nullptr, ShardLayout layout = {},
                 std::vector<settings::ParameterSettings> kinds = {});
  FlatParameters(const FlatParameters&) = delete;  // other objects keep references to it
  FlatParameters& operator=(const FlatParameters&) = delete;

  const at::Tensor& values() const { return values_; }  // [n] f32, trained parameters
  /// Returns the trained values followed by the frozen ones, [n + f] f32: an entire storage.
  const at::Tensor& weights() const { return weights_; }
  /// Returns the spans of the values, in order: one, unless parameters differ in their settings.
  const std::vector<ParameterSpan>& spans() const { return spans_; }
  /// Returns the names of the trained parameters, in the order of `parameters`.
  const std::vector<std::string>& names() const { return names_; }
  /// Returns the gradients, [n] f32. After `complete_sum`, the averager's owned slice holds sums
  /// over the ranks; after `all_gather`, the whole tensor does.
  const at::Tensor& gradients() const { return gradients_; }
  /// Returns the statistics, [s] f32, which follow the gradients and are summed with them.
  const at::Tensor& statistics() const { return statistics_; }
  /// Returns the current shard's statistics, the same tensor as `statistics` if there is one shard.
  const at::Tensor& shard_statistics() const { return shard_statistics_; }
  /// Returns the trained parameters for forward and backward: `bf16_copy`'s or else the module's.
  const std::vector<at::Tensor>& parameters() const { return parameters_; }
  const at::Tensor& bf16_values() const { return bf16_values_; }  // [h] bf16
  /// Returns a view of the bf16 copies of the values in `slice`; may be empty.
  at::Tensor bf16_values_of(comm::Slice slice) const;
  /// Returns the buffer for the gradient averager.
  comm::GradientBuffer gradient_buffer() const;

  /// Returns the number of shards of a global batch that this rank computes.
  std::size_t shards() const { return leaves_.size(); }
  /// Begins the backward passes of a shard; drops the gradients of the previous shard.
  void begin_shard(std::size_t number);
  /// On CPUs, gives the layers destination buffers for the gradients of the next backward pass;
  /// gradients written there need not be collected.
  void set_destinations(models::GradientDestinations& destinations) const;
  /// Moves the parameters' gradients into the flat gradients of the shard: the first call after
  /// `begin_shard` overwrites them, later calls add to them. Throws Error(kRunFailed), naming the
  /// parameter, if one has no gradient.
  void collect_gradients();
  /// Adds the gradients and `shard_statistics` of a shard to those of this rank's earlier shards,
  /// in the order of the summation tree. After the last shard the averager's rows are complete.
  void end_shard(std::size_t number);
  /// Sets all bf16 parameters, including frozen ones, to the rounded master values.
  void refresh_bf16_copy() const;

  /// Returns a view of a tensor [n] (such as momentum) with the layout of parameter `index`.
  at::Tensor view_like_parameter(const at::Tensor& flat, std::size_t index) const {
    return view(flat, layouts_[index]);
  }

 private:
  struct Layout {
    std::int64_t offset;
    std::vector<std::int64_t> sizes;
    std::vector<std::int64_t> strides;
  };

  const std::vector<at::Tensor>& shard_views() const {
    return gradient_views_[leaves_[shard_].row];
  }
  void collect(const std::vector<at::Tensor>& gradients, at::ScalarType type);
  static at::Tensor view(const at::Tensor& flat, const Layout& layout);
  std::size_t freeze(std::vector<at::Tensor>& masters,
                     std::vector<settings::ParameterSettings>& kinds);
  std::int64_t lay_out(const std::vector<settings::ParameterSettings>& kinds,
                       at::MemoryFormat format, std::int64_t& bf16_total);

  std::vector<std::string> names_;
  std::vector<at::Tensor> parameters_;
  std::vector<Layout> layouts_;
  std::vector<ParameterSpan> spans_;
  at::Tensor weights_;
  at::Tensor values_;                                             // a view of the first n weights
  std::vector<std::pair<at::Tensor, at::Tensor>> frozen_copies_;  // bf16 copies and fp32 weights
  comm::SummationTree tree_;
  std::vector<comm::SummationTree::Leaf> leaves_;
  at::Tensor rows_;  // [r, m]: summed gradients and statistics; the next three are views
  std::vector<at::Tensor> used_rows_;  // one per row, [n + s]
  at::Tensor gradients_;
  at::Tensor statistics_;
  at::Tensor shard_statistics_;
  at::Tensor bf16_rows_;  // [r, h]: gradients kept in bf16; undefined if there are none
  std::vector<std::vector<at::Tensor>> gradient_views_;  // by row, one per parameter
  at::Tensor bf16_values_;                               // of the first h values
  std::size_t shard_ = 0;                                // current shard
  bool accumulating_ = false;  // whether the shard's row holds gradients of an earlier batch
};

}  // namespace mnist_train::train
