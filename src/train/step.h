#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "comm/gradient_averager.h"
#include "kernels/optimizer_update.h"
#include "loader/batch.h"
#include "models/loss.h"
#include "models/model.h"
#include "settings/train_options.h"
#include "train/batch_partition.h"
#include "train/flat_parameters.h"
#include "train/optimizer.h"
#include "train/shard_buffers.h"
#include "train/step_stats.h"
#include "train/weight_average.h"

namespace mnist_train::train {

/// The global batches of one optimizer step, of which a rank takes its shards.
struct StepBatches {
  std::int64_t count = 1;  // more than one where gradients are accumulated
  std::int64_t samples;    // in all of them, over all ranks
  /// Returns this rank's shard number 0, 1, … (of its own), possibly empty, of batch number 0 to
  /// `count` - 1. It is valid until the next one is taken.
  std::function<loader::Batch(std::int64_t batch, std::size_t shard)> shard;
};

/// The numbers of a step that differ from those of the step before it.
struct StepRates {
  double learning_rate = 0;
  double average_weight = 0;  // see `average_weight`; not used without an average

  bool operator==(const StepRates&) const = default;
};

/// One optimizer step of one rank: forward, backward, averaging, clipping, update. From `run` on it
/// never waits for a GPU, so that a graph can capture it (see GraphedStep).
class Step {
 public:
  /// All but the options are kept by reference and must outlive the step. `model` is the one that
  /// computes, `parameters` are its own; `average` follows them, unless it is null.
  Step(const settings::TrainOptions& options, models::Model& model, FlatParameters& parameters,
       BatchPartition& partition, comm::GradientAverager& averager, Optimizer& optimizer,
       WeightAverage* average = nullptr);

  /// Tells the next steps what they need beside their samples: whether this rank was asked to stop,
  /// which captured steps read anew each time, and the rates of `run`.
  void request_stop(bool requested) { stats_.set_stop_requested(requested); }
  void set_rates(const StepRates& rates);
  /// Takes the whole step. Collective. A loss, or gradients, that are not finite are noticed at the
  /// next synchronisation, see `require_finite`. On a CPU such a loss leaves the weights as they
  /// were, and so do such gradients, unless the averager adds them up late and nothing is clipped.
  /// Throws PeerError, and Error(kRunFailed) where a parameter gets no gradient.
  void run(const StepBatches& batches) { run(batches, rates_); }
  /// Does the same with other rates: a tensor [2] on the device, of type `rates_type`, with the
  /// members of StepRates in their order, which is read when the step is computed.
  void run(const StepBatches& batches, const at::Tensor& rates);
  at::ScalarType rates_type() const { return rates_.scalar_type(); }

  const StepStats& stats() const { return stats_; }
  /// Returns the seconds that the host spent in averaging, in the last step.
  double averaging_seconds() const { return averaging_seconds_; }

 private:
  void compute_shard(const StepBatches& batches, std::size_t number);
  models::BackwardRoot forward(const loader::Batch& batch, double scale);
  at::Tensor loss_of_no_samples() const;
  bool update(const at::Tensor& rates);
  kernels::WeightUpdate weight_update(comm::Slice slice, const at::Tensor& rates) const;
  void update_by_kernel(kernels::WeightUpdate update, comm::Slice slice);
  bool clip_gradients(comm::Slice slice);
  template <class Work>
  void timed(const Work& averaging);

  settings::TrainOptions options_;
  models::Model& model_;
  FlatParameters& parameters_;
  BatchPartition& partition_;
  comm::GradientAverager& averager_;
  Optimizer& optimizer_;
  WeightAverage* average_;
  StepStats stats_;
  at::Tensor rates_;  // [2] on the device: f64, on a GPU f32 as its kernels want it
  std::optional<ShardBuffers> buffers_;  // where batches are cut into fixed shards
  double averaging_seconds_ = 0;
};

}  // namespace mnist_train::train
