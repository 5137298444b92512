#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
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
#include "train/schedule.h"

namespace mnist_train::train {

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
  bool are_many(std::span<const PlannedStep> planned) const;
  void make_inputs(const PlannedStep& first);
  void set_rates(std::span<const PlannedStep> steps);
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
