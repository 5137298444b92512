#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "comm/communicator.h"

namespace mnist_train::train {

/// Sums over the samples of one optimizer step, or of several.
struct StepSums {
  double loss = 0;     // of the samples' losses
  double correct = 0;  // samples; a mixed one counts by the weight of the label that was predicted
  double samples = 0;
  double stop_requests = 0;  // ranks that were asked to stop; NaN: see `StepLog::update_check`
};

StepSums& operator+=(StepSums& sums, const StepSums& more);

/// A step whose sums are known.
struct FinishedStep {
  std::int64_t step = 0;          // of the run, from 1
  std::int64_t samples_seen = 0;  // of the run, up to its end
  double learning_rate = 0;
  double finished_s = 0;  // CLOCK_MONOTONIC; on a GPU the time of several steps is divided evenly
  StepSums sums{};
};

/// The sums of steps. Those of the current step are scalars on the device that are summed in the
/// same all-reduce as its gradients, so every rank learns the global loss and all stop requests
/// without another message. Sums of earlier steps are kept until the next synchronisation, at which
/// all ranks read them: on CPUs after each step, else about twice a second, because a GPU runs
/// ahead of its host and a synchronisation makes the host wait.
class StepLog {
 public:
  static constexpr std::int64_t kScalars = 4;   // those of StepSums
  static constexpr std::int64_t kSteps = 8192;  // between two synchronisations, at most

  /// `summed` [kScalars + n] f32, on the training device, holds the sums over all ranks, `of_shard`
  /// those of a shard: the same tensor, or one like it. The last n scalars belong to the batch
  /// partition, or are the changes of the model's buffers. `runs_ahead`: this rank computes on a
  /// GPU. Collective.
  StepLog(const at::Tensor& summed, at::Tensor of_shard, const comm::Communicator& communicator,
          bool runs_ahead);

  // The current step. Only `last` waits for a GPU.

  /// Sets whether this rank is to stop after the next step; a captured step reads it each time.
  void request_stop(bool requested);
  /// Resets the scalars of a shard. The first shard of this rank carries its stop request.
  void begin_shard(bool is_first) const;
  /// Returns the scalars, [kScalars], a view; sums over the ranks after averaging.
  const at::Tensor& scalars() const { return scalars_; }
  /// Returns loss, correct predictions and number of the shard's samples, to add to; [3], a view.
  at::Tensor of_samples() const { return of_shard_.narrow(0, 0, 3); }
  /// Returns the scalars of the batch partition, or the summed changes of buffers; a view.
  const at::Tensor& others() const { return others_; }
  /// Returns the changes of the model's buffers in the shard, a view.
  at::Tensor shard_of_buffers() const {
    return of_shard_.narrow(0, kScalars, of_shard_.numel() - kScalars);
  }
  /// Returns a scalar, a view, that an update sets to NaN if it is not finite: after the sum over
  /// the ranks, so each rank writes the same.
  const at::Tensor& update_check() const { return update_check_; }
  /// Returns the sums of the last step.
  StepSums last() const;

  // The steps since the last synchronisation.

  /// Starts the clock of the next step.
  void begin_epoch();
  /// Adds the sums of the next steps, [n, kScalars] f32 on the device, where later work may
  /// overwrite them.
  void append(const at::Tensor& sums);
  /// Names the next of the added steps.
  void name_next(std::int64_t step, std::int64_t samples_seen, double learning_rate);
  /// Waits for the device and adds the sums of the steps since the last call, which must all have
  /// names, to `sums`. Returns these steps, valid until the next call.
  std::span<const FinishedStep> synchronize(StepSums& sums);
  /// Returns the steps up to the last `synchronize`, each once.
  std::vector<FinishedStep> take() { return std::exchange(finished_, {}); }

  // When all ranks synchronise: after the same steps.

  /// Returns the number of steps until the next synchronisation, at least 1.
  std::int64_t steps_left() const { return interval_ - steps_; }
  /// Counts up to `steps_left()` steps. Returns whether a synchronisation is due.
  bool is_due_after(std::int64_t steps) { return (steps_ += steps) >= interval_; }
  /// Sets the next interval, after a synchronisation. Collective if a rank has a GPU.
  void synced();

 private:
  const comm::Communicator& communicator_;
  at::Tensor of_shard_;         // [kScalars + n] f32, on the device
  at::Tensor scalars_;          // [kScalars], a view of the sums, as the next one
  at::Tensor update_check_;     // scalar, of these
  at::Tensor others_;           // [n]
  at::Tensor beginning_;        // [kScalars + n], of the first shard: zeros and the request
  bool requests_stop_ = false;  // the request in there
  at::Tensor rows_;             // [kSteps, kScalars] f32, page-locked if a GPU writes them
  std::int64_t rows_used_ = 0;
  std::vector<FinishedStep> unfinished_;  // without sums
  std::vector<FinishedStep> finished_;
  double begin_s_ = 0;  // of the steps since the last synchronisation
  bool any_runs_ahead_;
  std::int64_t interval_ = 1;  // steps
  std::int64_t steps_ = 0;     // since `synced`
  double synced_s_;
};

/// Returns the number of steps until the next synchronisation, after `steps` of them took
/// `seconds`.
std::int64_t next_interval(std::int64_t steps, double seconds);

/// Throws Error(kRunFailed), with the step and a remedy, if the loss or `update_check` is not
/// finite. In the latter case `broken_parameter` is called; it returns the name of a parameter
/// whose gradient is not finite, or "".
void require_finite(const StepSums& sums, std::int64_t step,
                    const std::function<std::string()>& broken_parameter);

}  // namespace mnist_train::train
