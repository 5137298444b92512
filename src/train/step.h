#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "accelerator/device.h"
#include "comm/gradient_averager.h"
#include "loader/batch_source.h"
#include "models/loss.h"
#include "models/model.h"
#include "settings/train_options.h"
#include "train/batch_partition.h"
#include "train/flat_parameters.h"
#include "train/optimizer.h"
#include "train/step_log.h"

namespace mnist_train::train {

/// The buffers of a model (running statistics, counters) if a batch is cut into fixed shards: each
/// shard's forward pass starts from the buffers of the step before, and its changes are summed over
/// the shards, weighted by their samples. Integers, such as counters, follow the first shard. So
/// all ranks get the same buffers, whichever ranks compute the shards.
class ShardBuffers {
 public:
  /// Returns the number of f32 elements of the changes of a model's buffers.
  static std::int64_t elements(const torch::nn::Module& model);

  /// `model` is the one that computes.
  explicit ShardBuffers(const torch::nn::Module& model);

  /// Keeps a copy of the buffers for the shards of the step.
  void begin_step();
  /// Resets the model's buffers to the copy.
  void begin_shard();
  /// Writes the changes since `begin_shard` to `changes` [elements] f32. `fraction`: the shard's
  /// part of the step's samples. `is_first`: whether it is the first of all shards.
  void end_shard(const at::Tensor& changes, double fraction, bool is_first) const;
  /// Resets the model's buffers to the copy and adds the summed `changes`.
  void end_step(const at::Tensor& changes);

 private:
  std::vector<at::Tensor> buffers_;  // floating-point ones first
  std::vector<at::Tensor> kept_;     // like them
  std::int64_t floating_elements_ = 0;
};

/// One optimizer step of one rank: forward, backward, averaging, clipping, update. It never waits
/// for a GPU, so a graph can capture it (see GraphedStep).
///
///     step.begin(samples, batches);
///     for each of this rank's shards, for each of its batches: step.add(batch);
///     step.finish(rates);
class Step {
 public:
  /// Keeps references to all arguments but the options. `model` is the one that computes, and
  /// `parameters` are its own. `class_weights`: [classes] f32 on the device, or undefined.
  Step(const settings::TrainOptions& options, models::Model& model, FlatParameters& parameters,
       BatchPartition& partition, comm::GradientAverager& averager, Optimizer& optimizer,
       StepLog& log, at::Tensor class_weights = {});

  /// Begins a step of `samples` samples over all ranks, in `batches` global batches (more than one
  /// if gradients are accumulated). `rates`: on the device, of `rates_type`, the members of
  /// StepRates in their order; it is read if there are class weights.
  void begin(std::int64_t samples, std::int64_t batches, const at::Tensor& rates = {});
  /// Runs forward and backward for a batch of the current shard, which may be empty. Every rank
  /// calls it for each batch of each of its shards, shard by shard. Collective. Throws PeerError,
  /// and Error(kRunFailed) if a parameter gets no gradient.
  void add(const loader::Batch& batch);
  /// Averages the gradients over the ranks and updates the weights. `rates`: as for `begin`.
  /// Collective. The next synchronisation reports a loss or gradients that are not finite, see
  /// `require_finite`. On a CPU the weights then stay as they were, except by gradients that are
  /// added up late without clipping. Throws PeerError.
  void finish(const at::Tensor& rates);

  at::ScalarType rates_type() const;
  StepLog& log() const { return log_; }
  /// Returns the host's seconds in averaging, in the last step.
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
  at::Tensor class_weights_;
  at::Tensor scaled_class_weights_;      // for this step
  std::optional<ShardBuffers> buffers_;  // with fixed shards
  std::int64_t samples_ = 0;             // of the step
  std::int64_t batches_ = 0;
  std::size_t shard_ = 0;           // the current one, of this rank's
  std::int64_t shard_batches_ = 0;  // of it, so far
  std::int64_t shard_samples_ = 0;  // in these
  double averaging_seconds_ = 0;
};

/// The plan of an optimizer step, in positions of this rank's order.
struct PlannedStep {
  std::int64_t samples = 0;                       // in all batches, over all ranks
  std::vector<std::vector<data::Range>> batches;  // the shards of all ranks, by batch
  std::vector<std::int64_t> shard_sizes;          // samples of each shard, in all batches
  data::Range own{};                              // the numbers of this rank's shards
  StepRates rates;

  /// Returns shard `number` of this rank's own in the first batch.
  data::Range own_shard(std::size_t number) const {
    return batches.front()[static_cast<std::size_t>(own.begin) + number];
  }
};

/// Replays captured steps, for global batches that are full and split among the ranks as the
/// captured one, after a few eager steps of warm-up. All other steps (the tail of an epoch) are
/// eager and compute the same. A replay is one step or several, which then find their samples and
/// rates on the device.
class GraphedStep {
 public:
  /// Number of steps in the larger of the two graphs.
  static constexpr std::int64_t kStepsAtOnce = 16;

  /// Keeps references to `step` and `images`. `samples`: those of a full global batch.
  GraphedStep(Step& step, loader::BatchSource& images, std::int64_t samples,
              accelerator::GraphFactory make_graph);

  /// Returns whether the step can be replayed rather than taken eagerly. To be called once for each
  /// step, since it counts the warm-up. All ranks decide alike: either all or none of them must
  /// capture a collective.
  bool can_replay(const PlannedStep& next);
  /// Returns whether captured steps gather their samples themselves; else `load` brings them.
  bool gathers_itself() const { return images_.gathers_at_positions(); }
  /// Copies a batch to the input of captured steps for this rank's shard `number`.
  void load(std::size_t number, loader::Batch batch);
  /// Takes the first planned step, or all of `kStepsAtOnce` if they are as captured; adds their
  /// sums to the step's log and returns their number. Each is of one batch. Collective. Throws as
  /// Step does, and Error(kRunFailed) if the step cannot be captured.
  std::int64_t replay(std::span<const PlannedStep> planned);

 private:
  std::vector<StepRates> rates_of_many(std::span<const PlannedStep> planned) const;
  void make_inputs(const PlannedStep& first);
  void set_rates(const std::vector<StepRates>& rates);
  void set_positions(const PlannedStep& next);
  void capture(accelerator::DeviceGraph& graph, std::int64_t steps);

  Step& step_;
  loader::BatchSource& images_;
  std::int64_t samples_;
  accelerator::GraphFactory make_graph_;
  std::vector<std::int64_t> shard_sizes_;  // those that are captured, or will be after the warm-up
  int warm_up_steps_left_ = 0;
  std::unique_ptr<accelerator::DeviceGraph> one_;   // null until it is captured
  std::unique_ptr<accelerator::DeviceGraph> many_;  // null until kStepsAtOnce steps are due

  // Inputs and outputs of captured steps, on the device.
  at::Tensor rates_;                   // [kStepsAtOnce, 3], one row a step of a replay
  std::vector<StepRates> set_rates_;   // its rows
  std::vector<at::Tensor> positions_;  // by shard: [n] i64 of the next step's samples
  std::int64_t next_position_ = -1;    // the first of them
  std::vector<loader::Batch> inputs_;  // by shard: instead of positions, see `load`
  at::Tensor sums_;                    // [kStepsAtOnce, StepLog::kScalars], one row a step
};

}  // namespace mnist_train::train
