#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "comm/communicator.h"
#include "comm/shard.h"
#include "settings/train_options.h"

namespace mnist_train::comm {

/// What an averager works on: the parameters, their gradients as one buffer, and the riders behind
/// them: a few numbers of this step that are summed over the ranks along with the gradients.
struct GradientBuffer {
  std::vector<at::Tensor> parameters;
  at::Tensor flat;          // [gradient elements + riders] f32
  std::int64_t riders = 0;  // the last elements of `flat`
};

/// Makes gradients those of the mean loss over the global batch, however the batch is split among
/// the ranks. One step calls, in order: before_forward, the model's forward, backward; what
/// backward left is brought into the buffer, unless the strategy averages it where it is; finish;
/// gather, if somebody wants to see all gradients; then weights and optimizer state change in
/// `owned_shard`, and publish.
class GradientAverager {
 public:
  explicit GradientAverager(GradientBuffer buffer) : buffer_(std::move(buffer)) {}
  virtual ~GradientAverager() = default;

  /// What a rank multiplies the SUM of its samples' losses with before backward.
  virtual double loss_scale(std::int64_t global_batch_size) const {
    return 1.0 / static_cast<double>(global_batch_size);
  }
  virtual void before_forward() {}
  /// Adds the gradients of `loss` to those of the parameters, which must all be reachable from it.
  /// The riders must be filled by then. Collective for some strategies.
  virtual void backward(const at::Tensor& loss) { loss.backward(); }
  /// Whether what `backward` leaves in the parameters' gradients is averaged by the end of
  /// `finish`; else the buffer is, which they must have been brought to.
  virtual bool averages_in_backward() const { return false; }
  /// The gradients that are averaged on this rank after `finish`: all of them, or, where ranks
  /// share the weights, those of the weights that this rank updates for all.
  virtual Shard owned_shard() const { return {0, gradient_count()}; }
  /// Collective, once, before the first step that changes them: weights and what the optimizer
  /// keeps, whole storages that are alike on all ranks, may lie in shared memory from here on.
  virtual void move_to_shared_memory(const std::vector<at::Tensor>& /*state*/) {}
  /// Collective: after it the riders are the same on every rank, and gradients as `owned_shard`
  /// says. Throws PeerError.
  virtual void finish() = 0;
  /// Collective, after `finish`: all gradients are averaged on every rank.
  virtual void all_gather() {}
  /// Collective: every rank sees what all have updated.
  virtual void barrier() {}
  /// Whether a step that averages so can be recorded as a DeviceGraph.
  virtual bool capturable() const { return false; }
  /// "flat", "bucketed", "shared_memory" or "none", for the log.
  virtual const char* name() const = 0;

 protected:
  std::int64_t gradient_count() const { return buffer_.flat.numel() - buffer_.riders; }
  at::Tensor riders() const { return buffer_.flat.narrow(0, gradient_count(), buffer_.riders); }

  GradientBuffer buffer_;
};

/// Collective. `flat`: one buffer, one all-reduce after backward. `bucketed`: c10d::Reducer, which
/// sends buckets while backward still computes. `shared_memory`: without messages, on the CPUs of
/// one host. `auto` takes the last where it can, else bucketed from 25 MB of gradients on unless
/// deterministic, or unless it may not communicate in backward. One rank: nothing to do.
std::unique_ptr<GradientAverager> make_gradient_averager(const settings::TrainOptions& options,
                                                         const Communicator& communicator,
                                                         GradientBuffer buffer,
                                                         bool may_overlap = true);

}  // namespace mnist_train::comm
