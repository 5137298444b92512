#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>

#include "comm/gradient_averager.h"
#include "loader/batch.h"
#include "models/loss.h"
#include "models/model.h"
#include "settings/train_options.h"
#include "train/batch_partition.h"
#include "train/flat_parameters.h"
#include "train/optimizer.h"
#include "train/shard_buffers.h"
#include "train/step_log.h"

namespace mnist_train::train {

/// One optimizer step of one rank: forward, backward, averaging, clipping, update. It never waits
/// for a GPU, so a graph can capture it (see GraphedStep).
///
///     step.begin(samples, batches);
///     for each of this rank's shards, for each of its batches: step.add(batch);
///     step.finish(rates);
class Step {
 public:
  /// All but the options are kept by reference and must outlive the step. `model` is the one that
  /// computes, `parameters` are its own.
  Step(const settings::TrainOptions& options, models::Model& model, FlatParameters& parameters,
       BatchPartition& partition, comm::GradientAverager& averager, Optimizer& optimizer,
       StepLog& log);

  /// Begins a step of `samples` samples over all ranks, in `batches` global batches (more than one
  /// if gradients are accumulated).
  void begin(std::int64_t samples, std::int64_t batches);
  /// Runs forward and backward for a batch of the current shard, which may be empty. Every rank
  /// calls it for each batch of each of its shards, shard by shard. Collective. Throws PeerError,
  /// and Error(kRunFailed) if a parameter gets no gradient.
  void add(const loader::Batch& batch);
  /// Averages the gradients over the ranks and updates the weights. `rates`: [2] on the device, of
  /// `rates_type`, the members of StepRates in their order. Collective. A loss or gradients that
  /// are not finite are noticed at the next synchronisation, see `require_finite`. On a CPU such a
  /// loss leaves the weights as they were, and so do such gradients, unless the averager adds them
  /// up late and nothing is clipped. Throws PeerError.
  void finish(const at::Tensor& rates);

  at::ScalarType rates_type() const;
  StepLog& log() const { return log_; }
  /// Returns the seconds that the host spent in averaging, in the last step.
  double averaging_seconds() const { return averaging_seconds_; }

 private:
  void begin_shard();
  void end_shard();
  models::BackwardRoot forward(const loader::Batch& batch);
  at::Tensor loss_of_no_samples() const;
  template <class Work>
  void timed(const Work& averaging);

  settings::TrainOptions options_;
  models::Model& model_;
  FlatParameters& parameters_;
  BatchPartition& partition_;
  comm::GradientAverager& averager_;
  Optimizer& optimizer_;
  StepLog& log_;
  std::optional<ShardBuffers> buffers_;  // if batches are cut into fixed shards
  std::int64_t samples_ = 0;             // of the step
  std::int64_t batches_ = 0;
  std::size_t shard_ = 0;           // the current one, of this rank's
  std::int64_t shard_batches_ = 0;  // of it, so far
  std::int64_t shard_samples_ = 0;  // in these
  double averaging_seconds_ = 0;
};

}  // namespace mnist_train::train
