#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>

#include "comm/gradient_averager.h"
#include "loader/batch.h"
#include "models/model.h"
#include "settings/train_options.h"
#include "train/flat_parameters.h"
#include "train/optimizer.h"

namespace mnist_train::train {

/// Sums over a global batch, or over several of them.
struct StepSums {
  double loss = 0;     // of the samples' losses
  double correct = 0;  // samples; of mixed ones the share whose label was guessed
  double samples = 0;
  double stop_requests = 0;  // ranks that were asked to stop
};

/// One optimizer step of one rank: set, begin, accumulate once a batch, finish. From `begin` on it
/// never waits for a GPU, so that it can be recorded (see GraphedStep). Its sums ride with the
/// gradients, so every rank learns the global loss, and whether any rank wants to stop, at
/// no extra message.
class Step {
 public:
  static constexpr std::int64_t kRiders = 4;  // the first ones of the parameters'

  Step(const settings::TrainOptions& options, std::shared_ptr<models::Model> model,
       const FlatParameters& parameters, comm::GradientAverager& averager, Optimizer& optimizer);

  /// What the next step needs to know beside its samples. A recorded step reads it again each time.
  void set(double learning_rate, bool stop_requested);
  void begin();
  /// Forward and backward. `batch` is this rank's share, possibly empty, of a global batch;
  /// `samples` are those of the whole step, over all ranks and batches. Collective for the `last`
  /// batch of a step, where averaging overlaps with it.
  void accumulate(const loader::Batch& batch, std::int64_t samples, bool last);
  /// Collective: averages, clips, updates. On a CPU a loss that is not finite leaves the weights as
  /// they were; on a GPU nobody has looked yet. See `require_finite`.
  void finish();

  /// What averaging took in `finish`, on the host: in the last step.
  double averaging_seconds() const { return averaging_seconds_; }
  /// Of the last step. On a GPU this waits for it.
  StepSums last() const;
  /// Since the last call of `restart_totals`. On a GPU this waits.
  StepSums totals() const;
  void restart_totals(const StepSums& start = {});

 private:
  at::Tensor loss_of(const loader::Batch& batch);
  at::Tensor loss_of_nothing() const;
  void update(comm::Shard part);
  void clip_gradients(comm::Shard part);
  template <class Work>
  void timed(const Work& averaging);

  settings::TrainOptions options_;
  std::shared_ptr<models::Model> model_;
  const FlatParameters& parameters_;
  comm::GradientAverager& averager_;
  Optimizer& optimizer_;
  at::Tensor totals_;          // [kRiders] f64, on the device
  at::Tensor learning_rate_;   // scalar on the device: f64, on a GPU f32 as its kernels want it
  at::Tensor stop_requested_;  // scalar f32 on the device
  bool is_first_batch_ = true;
  double averaging_seconds_ = 0;
};

/// Throws Error(kRunFailed) when the sums hold a NaN or an infinity: what the loss became, where,
/// what to try.
void require_finite(const StepSums& sums, std::int64_t step);

}  // namespace mnist_train::train
