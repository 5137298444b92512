#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <string>

namespace mnist_train::train {

/// Sums over the samples of one optimizer step, or of several.
struct StepSums {
  double loss = 0;     // of the samples' losses
  double correct = 0;  // samples; a mixed one counts by the weight of the label that was predicted
  double samples = 0;
  double stop_requests = 0;  // ranks that were asked to stop, one a step; NaN: see `update_check`
};

StepSums& operator+=(StepSums& sums, const StepSums& more);

/// Returns [kScalars] f32 of the host's memory as sums.
StepSums to_sums(const at::Tensor& scalars);

/// The scalars of a step that are summed over the ranks in the same all-reduce as its gradients,
/// behind which they lie ("piggybacked"): every rank learns the global loss, and whether any rank
/// is to stop, at no extra message. Only `last` waits for a GPU.
class StepStats {
 public:
  static constexpr std::int64_t kScalars = 4;  // those of StepSums

  /// `summed` [kScalars + n] f32, on the training device, is where the sums of all ranks come to,
  /// and `of_shard` where those of a shard are counted: the same tensor, or one like it. The n
  /// scalars behind are of the batch partition, or the changes of the model's buffers.
  StepStats(const at::Tensor& summed, at::Tensor of_shard);

  /// Says whether this rank is to stop after the next step. A captured step reads it anew each
  /// time.
  void set_stop_requested(bool stop_requested);
  /// Sets the scalars to those of a shard that has seen no sample. This rank's first one carries
  /// its request to stop.
  void begin_shard(bool is_first) const;
  /// Returns the scalars, [kScalars], a view; summed over the ranks once they are averaged.
  const at::Tensor& scalars() const { return scalars_; }
  /// Returns a scalar, a view, to be made NaN after the averaging if the step's gradients, or the
  /// weights that they give, are not finite: every rank has to stop then, so it is the one that
  /// counts requests to do so.
  at::Tensor update_check() const;
  /// Returns those that a shard's samples are added to: loss, correct predictions, count; [3], a
  /// view.
  at::Tensor of_samples() const { return of_shard_.narrow(0, 0, 3); }
  /// Returns the scalars that belong to the batch partition, a view.
  const at::Tensor& of_partition() const { return others_; }
  /// Returns the changes of the model's buffers in a shard, and those summed over all; views.
  at::Tensor shard_of_buffers() const {
    return of_shard_.narrow(0, kScalars, of_shard_.numel() - kScalars);
  }
  const at::Tensor& of_buffers() const { return others_; }
  /// Returns the sums of the last step.
  StepSums last() const;

 private:
  at::Tensor of_shard_;         // [kScalars + n] f32, on the device
  at::Tensor scalars_;          // [kScalars], a view of the sums, as the next one
  at::Tensor others_;           // [n]
  at::Tensor beginning_;        // [kScalars + n], of the first shard: zeros and the request
  bool requests_stop_ = false;  // what is in there
};

/// Throws Error(kRunFailed) when the loss is a NaN or an infinity, or `update_check` a NaN: what
/// became of it, in which step, and what to try. `broken_parameter` is asked for the name of one
/// whose gradient is not finite, empty if that is not known.
void require_finite(const StepSums& sums, std::int64_t step,
                    const std::function<std::string()>& broken_parameter);

}  // namespace mnist_train::train
