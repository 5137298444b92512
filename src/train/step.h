#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "accelerator/device.h"
#include "base/system.h"
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

/// A finished step and its sums.
struct FinishedStep {
  std::int64_t step = 0;          // of the run, from 1
  std::int64_t samples_seen = 0;  // in the run, up to the end of the step
  double learning_rate = 0;
  double finished_s = 0;  // CLOCK_MONOTONIC; on a GPU, interpolated evenly between synchronisations
  StepSums sums{};
};

/// Loss and other sums of each step. Those of the current step are scalars on the device, summed
/// over the ranks along with the gradients (with uncompressed `flat`, in the same all-reduce), so
/// every rank learns the global loss and all stop requests. Sums of earlier steps are kept until
/// the next synchronisation, when all ranks read them. On CPUs, ranks synchronise after every step;
/// with a GPU, about twice a second, because the host runs ahead of the GPU and each
/// synchronisation waits for it.
class StepLog {
 public:
  static constexpr std::int64_t kScalars = 4;   // the members of StepSums
  static constexpr std::int64_t kSteps = 8192;  // maximum between synchronisations

  /// `summed` [kScalars + n] f32, on the training device, holds the sums over all ranks, and
  /// `shard_sums` those of one shard; it is the same tensor or one of the same shape. The last n
  /// scalars belong to the batch partition or are the changes to the model's buffers.
  /// `runs_ahead`: whether this rank computes on a GPU. Collective.
  StepLog(const at::Tensor& summed, at::Tensor shard_sums, const comm::Communicator& communicator,
          bool runs_ahead);

  // The current step. Only `last_sums` waits for the GPU.

  /// Sets whether to request a stop after the next step. Captured steps read the current value.
  void request_stop(bool requested);
  /// Resets the scalars of a shard. The first shard of this rank carries its stop request.
  void begin_shard(bool is_first) const {
    is_first ? shard_sums_.copy_(initial_) : shard_sums_.zero_();
  }
  /// Returns a view of the scalars, [kScalars]; after averaging, they are sums over the ranks.
  const at::Tensor& scalars() const { return scalars_; }
  /// Returns a view of the shard's sums over batches: loss, correct predictions and samples, [3].
  at::Tensor sample_sums() const { return shard_sums_.narrow(0, 0, 3); }
  /// Returns a view of the batch partition's scalars, or of the summed changes to the buffers.
  const at::Tensor& extra_scalars() const { return extra_scalars_; }
  /// Returns a view of the shard's changes to the model's buffers.
  at::Tensor shard_buffer_changes() const {
    return shard_sums_.narrow(0, kScalars, shard_sums_.numel() - kScalars);
  }
  /// Returns a view of a scalar that is set to NaN if an update is not finite. This happens after
  /// the sum over the ranks, so each rank writes the same value.
  const at::Tensor& update_check() const { return update_check_; }
  /// Returns the sums of the last step.
  StepSums last_sums() const;

  // The steps since the last synchronisation.

  /// Starts timing the next step.
  void begin_epoch();
  /// Copies the next steps' sums, [n, kScalars] f32 on the device; later work may overwrite `sums`.
  void append(const at::Tensor& sums);
  /// Describes the appended steps in order, one per call.
  void describe_next(std::int64_t step, std::int64_t samples_seen, double learning_rate) {
    unfinished_.push_back({step, samples_seen, learning_rate});
  }
  /// Waits for the device and adds the sums of steps since the last call to `sums`; each must have
  /// been described by `describe_next`. Returns the steps, valid until the next call or `take`.
  std::span<const FinishedStep> synchronize(StepSums& sums);
  /// Takes the steps up to the last `synchronize`; each step is returned once.
  std::vector<FinishedStep> take() { return std::exchange(finished_, {}); }

  // When to synchronise: after the same steps on all ranks.

  /// Returns the number of steps until the next synchronisation, at least 1.
  std::int64_t steps_left() const { return interval_ - steps_; }
  /// Counts `steps` steps, at most `steps_left()`. Returns whether a synchronisation is due.
  bool is_due_after(std::int64_t steps) { return (steps_ += steps) >= interval_; }
  /// Sets the next interval; called after a synchronisation. Collective if a rank has a GPU.
  void set_next_interval();

 private:
  const comm::Communicator& communicator_;
  at::Tensor shard_sums_;       // [kScalars + n] f32, on the device
  at::Tensor scalars_;          // [kScalars], a view of the sums, like the next two
  at::Tensor update_check_;     // one of the scalars
  at::Tensor extra_scalars_;    // [n]
  at::Tensor initial_;          // [kScalars + n], for the first shard: zeros and the stop request
  bool requests_stop_ = false;  // the value in `initial_`
  at::Tensor rows_;             // [kSteps, kScalars] f32, page-locked if a GPU writes them
  std::int64_t rows_used_ = 0;
  std::vector<FinishedStep> unfinished_;  // sums not read yet
  std::vector<FinishedStep> finished_;
  double begin_s_ = monotonic_seconds();  // of the steps since the last synchronisation
  bool any_runs_ahead_;
  std::int64_t interval_ = 1;  // steps
  std::int64_t steps_ = 0;     // since `set_next_interval`
  double synced_s_ = monotonic_seconds();
};

/// Returns the number of steps until the next synchronisation, given that `steps` took `seconds`.
std::int64_t next_interval(std::int64_t steps, double seconds);

/// Throws Error(kRunFailed), with the step and a remedy, if the loss is not finite or
/// `update_check` is NaN.
void require_finite(const StepSums& sums, std::int64_t step);

/// The buffers of a model (running statistics, counters) when batches are split into fixed shards:
/// each shard's forward pass starts from the buffers after the previous step, and the changes are
/// summed over the shards, weighted by their numbers of samples. Integer buffers, such as counters,
/// take the first shard's values. All ranks therefore have the same buffers, regardless of which
/// rank computes which shard. Masks (models::is_mask) must not change.
class ShardBuffers {
 public:
  /// Returns the number of fp32 elements needed for the changes to a model's buffers.
  static std::int64_t elements(const torch::nn::Module& model);

  /// `model`, which runs the forward and backward passes, must have `elements`.
  explicit ShardBuffers(const torch::nn::Module& model);

  /// Saves a copy of the buffers for the shards of the step.
  void begin_step();
  /// Resets the model's buffers to the copy.
  void begin_shard();
  /// Writes the changes since `begin_shard` to `changes` [elements] f32. `fraction`: the shard's
  /// fraction of the step's samples. `is_first`: whether it is the first shard of the step.
  void end_shard(const at::Tensor& changes, double fraction, bool is_first) const;
  /// Resets the model's buffers to the copy and adds the summed `changes`.
  void end_step(const at::Tensor& changes);

 private:
  std::vector<at::Tensor> buffers_;  // floating-point buffers first
  std::vector<at::Tensor> saved_;    // their copies
  std::int64_t floating_elements_ = 0;
};

/// One optimizer step of one rank: forward, backward, averaging, clipping, update. Waits for a GPU
/// only if the partition measures times; otherwise, a graph can capture it (see GraphedStep).
///
///     step.begin(samples, batches, rates);
///     for each of this rank's shards, for each of its batches: step.add(batch);
///     step.finish(rates);
class Step {
 public:
  /// Keeps references to all arguments except the options. `model` runs forward and backward, with
  /// the parameters in `parameters`. `class_weights`: [classes] f32 on the device, or undefined.
  Step(const settings::TrainOptions& options, models::Model& model, FlatParameters& parameters,
       BatchPartition& partition, comm::GradientAverager& averager, Optimizer& optimizer,
       StepLog& log, at::Tensor class_weights = {});

  /// Begins a step of `samples` samples over all ranks, in `batches` global batches (more than one
  /// if gradients are accumulated). `rates`: the members of StepRates in order, on the device, of
  /// type `rates_type`; used only with class weights.
  void begin(std::int64_t samples, std::int64_t batches, const at::Tensor& rates = {});
  /// Runs forward and backward for a batch of the current shard; it may be empty. Every rank calls
  /// this for each batch of each of its shards, shard by shard. Collective. Throws PeerError, and
  /// Error(kRunFailed) if a parameter has no gradient.
  void add(const loader::Batch& batch);
  /// Averages the gradients over the ranks and updates the weights. `rates`: as for `begin`.
  /// Collective. If the loss or a gradient is not finite, the next synchronisation reports it (see
  /// `require_finite`). On a CPU, the weights then remain unchanged if the loss is the cause or if
  /// gradients are clipped. Throws PeerError.
  void finish(const at::Tensor& rates);

  at::ScalarType rates_type() const {
    return parameters_.values().is_cpu() ? at::kDouble : at::kFloat;
  }
  StepLog& log() const { return log_; }
  /// Returns the time that the host spent on averaging in the last step.
  double averaging_seconds() const { return averaging_seconds_; }

 private:
  models::BackwardRoot forward(const loader::Batch& batch);
  at::Tensor zero_loss() const;

  settings::TrainOptions options_;
  models::Model& model_;
  FlatParameters& parameters_;
  BatchPartition& partition_;
  comm::GradientAverager& averager_;
  Optimizer& optimizer_;
  StepLog& log_;
  at::Tensor class_weights_;
  at::Tensor scaled_class_weights_;      // for this step
  std::optional<ShardBuffers> buffers_;  // with fixed shards, if the model has buffers
  std::int64_t samples_ = 0;             // of the step
  std::int64_t batches_ = 0;
  std::size_t shard_ = 0;           // index of the current shard among this rank's
  std::int64_t shard_batches_ = 0;  // processed in the shard so far
  std::int64_t shard_samples_ = 0;  // in these batches
  double averaging_seconds_ = 0;
};

/// The plan of an optimizer step, as positions in the sample orders of the ranks.
struct PlannedStep {
  std::int64_t samples = 0;                       // in all batches of all ranks
  std::vector<std::vector<data::Range>> batches;  // the shards of all ranks, per batch
  std::vector<std::int64_t> shard_sizes;          // samples of each shard over all batches
  data::Range local{};                            // the indices of this rank's shards
  StepRates rates;

  /// Returns shard `number` of this rank in the first batch.
  data::Range local_shard(std::size_t number) const {
    return batches.front()[static_cast<std::size_t>(local.begin) + number];
  }
};

/// Replays captured steps, after a few eager warm-up steps, for full global batches with the same
/// shard sizes as the captured batch. All other steps, such as a smaller last one, run eagerly,
/// with the same results. A replay runs one step or, if steps read their samples' positions from
/// device memory, possibly `kStepsAtOnce` steps.
class GraphedStep {
 public:
  /// Number of steps in the larger graph.
  static constexpr std::int64_t kStepsAtOnce = 16;

  /// Keeps references to `step` and `images`. `samples`: size of a full global batch.
  GraphedStep(Step& step, loader::BatchSource& images, std::int64_t samples,
              accelerator::GraphFactory make_graph)
      : step_(step), images_(images), samples_(samples), make_graph_(std::move(make_graph)) {}

  /// Returns whether the step can be replayed instead of run eagerly. Must be called once per step,
  /// because it counts the warm-up. The result is the same on all ranks: either all or none of them
  /// must capture a collective.
  bool can_replay(const PlannedStep& next);
  /// Returns whether captured steps gather their samples themselves; otherwise `load` is needed.
  bool gathers_samples() const { return images_.gathers_at_positions(); }
  /// Copies a batch to the input buffer of captured steps for this rank's shard `number`.
  void load(std::size_t number, loader::Batch batch);
  /// Runs the first planned step, or the first `kStepsAtOnce` if they match the larger graph.
  /// Appends the sums to the step's log and returns the number of steps. Each step has one batch.
  /// Collective. Throws as Step does, and Error(kRunFailed) if the step cannot be captured.
  std::int64_t replay(std::span<const PlannedStep> planned);

 private:
  bool can_replay_together(std::span<const PlannedStep> planned) const;
  void set_rates(std::span<const PlannedStep> steps);
  void set_positions(const PlannedStep& next);
  void capture(accelerator::DeviceGraph& graph, std::int64_t steps);

  Step& step_;
  loader::BatchSource& images_;
  std::int64_t samples_;
  accelerator::GraphFactory make_graph_;
  std::vector<std::int64_t> shard_sizes_;  // as captured, or to be captured after the warm-up
  int warm_up_steps_left_ = 0;
  std::unique_ptr<accelerator::DeviceGraph> graph_;        // null until captured
  std::unique_ptr<accelerator::DeviceGraph> large_graph_;  // null until first used

  // Inputs and outputs of captured steps, on the device.
  at::Tensor rates_;                   // [kStepsAtOnce, 3], one row per step of a replay
  std::vector<StepRates> last_rates_;  // the contents of `rates_`
  std::vector<at::Tensor> positions_;  // per shard: [n] i64 of the next step's samples
  std::int64_t next_position_ = -1;    // the first one in `positions_[0]`
  std::vector<loader::Batch> inputs_;  // per shard, instead of positions (see `load`)
  at::Tensor sums_;                    // [kStepsAtOnce, StepLog::kScalars], one row per step
};

}  // namespace mnist_train::train
