#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>

#include "batch/batch.h"
#include "comm/gradient_averager.h"
#include "model/model.h"
#include "train/flat_parameters.h"
#include "train/optimizer.h"

namespace mnist_train::train {

/// Sums over a global batch, or over several of them.
struct StepSums {
  double loss = 0;     // of the samples' losses
  double correct = 0;  // samples
  double samples = 0;
  double stop_requests = 0;  // ranks that were asked to stop
};

/// One optimizer step of one rank, eager: forward, backward, averaging, update. Its sums ride with
/// the gradients, so every rank learns the global loss, and whether any rank wants to stop, at no
/// extra message.
class Step {
 public:
  static constexpr std::int64_t kRiders = 4;

  Step(std::shared_ptr<model::Model> model, const FlatParameters& parameters,
       comm::GradientAverager& averager, Optimizer& optimizer);

  /// Collective. `batch` is this rank's share, possibly empty, of `global_batch_size` samples. On a
  /// CPU a loss that is not finite leaves the weights as they were; on a GPU nobody has looked yet.
  /// See `require_finite`.
  void run(const batch::Batch& batch, std::int64_t global_batch_size, double learning_rate,
           bool stop_requested);

  /// Of the last step. On a GPU this waits for it.
  StepSums last() const;
  /// Since the last call of `restart_totals`. On a GPU this waits.
  StepSums totals() const;
  void restart_totals(const StepSums& start = {});

 private:
  void compute_gradients(const batch::Batch& batch, std::int64_t global_batch_size);
  at::Tensor loss_of_nothing() const;

  std::shared_ptr<model::Model> model_;
  const FlatParameters& parameters_;
  comm::GradientAverager& averager_;
  Optimizer& optimizer_;
  at::Tensor totals_;  // [kRiders] f64, on the device
};

/// Throws Error(kRunFailed) when the sums hold a NaN or an infinity: what the loss became, where,
/// what to try.
void require_finite(const StepSums& sums, std::int64_t step);

}  // namespace mnist_train::train
