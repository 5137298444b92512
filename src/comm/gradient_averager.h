#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "comm/communicator.h"
#include "comm/gradient_buffer.h"
#include "settings/train_options.h"

namespace mnist_train::comm {

/// Sums gradients over the ranks. Each rank's loss is its part of the mean over the global batch,
/// so the sum is the gradient of that mean, however the batch is split.
///
/// A step calls, in this order: `begin`; for each of its batches the model's forward pass and
/// `backward`; `average`; then weights and optimizer state are updated in `owned_slice`, by the
/// gradients that `sum` adds up, or that `add_up` has; `end_update`. All of them but `begin`, `sum`
/// and `add_up` may be collective.
class GradientAverager {
 public:
  explicit GradientAverager(GradientBuffer buffer) : buffer_(std::move(buffer)) {}
  virtual ~GradientAverager() = default;

  virtual void begin() { added_up_ = false; }
  /// Runs backward from `root`, of which every parameter must be a part and whose gradient is
  /// `gradient` (undefined: 1), and adds the gradients to those of the step. In the `last` batch of
  /// a step the statistics must be complete, since the strategies that overlap start to
  /// communicate.
  virtual void backward(const at::Tensor& root, const at::Tensor& gradient, bool last);
  /// Completes the sums: the statistics are then the same on all ranks, and what `sum` returns is
  /// there. Throws PeerError.
  virtual void average() = 0;
  /// Returns what the gradients in `owned_slice` are the sum of, on a CPU.
  GradientSum sum() const;
  /// Adds the gradients in `owned_slice` up, where `average` left that to do.
  void add_up();
  /// Returns whether `average` may leave that to do, because it sends nothing. If not, `sum` is one
  /// row, all f32.
  virtual bool adds_up_late() const { return false; }
  /// Makes the gradients, added up, whole on every rank.
  virtual void all_gather() {}
  /// Waits until every rank sees what all of them updated. Returns whether the update was finite on
  /// all ranks; where each of them updates all weights, by the same sums, this one's `finite`.
  virtual bool end_update(bool finite) { return finite; }

  /// Returns the elements that this rank updates for all ranks: all of them, unless the ranks share
  /// one copy of the weights.
  virtual Slice owned_slice() const { return {0, gradient_count()}; }
  /// Moves weights and optimizer state, whole storages with the same contents on all ranks, into
  /// memory that the ranks share, where the strategy does so. Collective; called once, before the
  /// first step.
  virtual void move_to_shared_memory(const std::vector<at::Tensor>& /*state*/) {}
  /// Returns whether a step with this strategy can be captured as a DeviceGraph.
  virtual bool capturable() const { return false; }
  /// Returns "flat", "bucketed", "shared_memory" or "none", for the log and the summary.
  virtual const char* name() const = 0;

 protected:
  /// Returns the parts that `average` leaves to be added up; no rows where it leaves none.
  virtual GradientSum parts() const { return {}; }
  std::int64_t gradient_count() const { return buffer_.flat.numel() - buffer_.statistics; }
  at::Tensor statistics() const {
    return buffer_.flat.narrow(0, gradient_count(), buffer_.statistics);
  }

  /// Returns what of `owned_slice` the ranks have in these tables, which lie like the buffer's
  /// `rows` and `bf16_rows`, of which there are none where those are undefined.
  GradientSum parts_in(const std::vector<at::Tensor>& tables,
                       const std::vector<at::Tensor>& bf16_tables) const;

  /// Returns the part of row `row` that `flat` is of the first one.
  at::Tensor without_padding(const at::Tensor& row) const {
    return row.narrow(-1, 0, buffer_.flat.numel());
  }

  GradientBuffer buffer_;

 private:
  at::Tensor owned_gradients() const { return owned_slice().of(buffer_.flat); }

  bool added_up_ = false;  // the parts of what was collected last
};

/// Returns whether the averager that the options ask for leaves the rows of all ranks to be added
/// up as the weights are updated, and takes `bf16_rows`: on CPUs one rank's, and `shared_memory`.
/// Collective.
bool adds_up_late(const settings::TrainOptions& options, const Communicator& communicator,
                  at::Device device);

/// Returns the type in which compressed gradients are sent; nothing where they keep their own.
std::optional<at::ScalarType> compressed_type(settings::Compression compression);

/// Makes the averager that the options ask for. `flat`: one all-reduce of the whole buffer after
/// backward. `bucketed`: c10d::Reducer, which sends buckets while backward still computes.
/// `shared_memory`: no messages, on the CPUs of one host. `auto` takes `shared_memory` where it is
/// possible, else `bucketed` from 25 MB of gradients on, else `flat`; never `bucketed` in a
/// deterministic run or without `may_overlap`, as where the step is captured. One rank needs none.
/// With `shards` both add up in the order of the buffer's tree, `flat` by gathering all rows.
/// Collective. Throws Error(kConfig) where `shared_memory` is asked for and not possible.
std::unique_ptr<GradientAverager> make_gradient_averager(const settings::TrainOptions& options,
                                                         const Communicator& communicator,
                                                         GradientBuffer buffer,
                                                         bool may_overlap = true);

}  // namespace mnist_train::comm
