#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "accelerator/device.h"
#include "loader/batch_source.h"
#include "train/step.h"

namespace mnist_train::train {

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
