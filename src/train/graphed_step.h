#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "accelerator/device.h"
#include "loader/batch_source.h"
#include "train/step.h"
#include "train/trainer_setup.h"

namespace mnist_train::train {

/// An optimizer step that is to be taken, in positions of this rank's order.
struct PlannedStep {
  std::int64_t samples = 0;                       // in all batches, over all ranks
  std::vector<std::vector<data::Range>> batches;  // the shards of all ranks, by batch
  std::vector<std::int64_t> shard_sizes;          // samples of each shard, in all batches
  data::Range own{};                              // the numbers of this rank's shards
  StepRates rates;

  /// Returns this rank's shard `number` of its own in the first batch.
  data::Range own_shard(std::size_t number) const {
    return batches.front()[static_cast<std::size_t>(own.begin) + number];
  }
};

/// Takes steps by replaying captured ones where it can: for global batches that are full and split
/// among the ranks as the captured one was, after a few eager steps in which libraries and
/// allocators settle. All other steps (the tail of an epoch) are eager, and compute the same. A
/// replay is one step, or many, which then find their samples and rates on the device.
class GraphedStep {
 public:
  /// How many steps the larger of the two graphs holds.
  static constexpr std::int64_t kStepsAtOnce = 16;

  /// `step` and `images` are kept by reference. `samples`: those of a full global batch.
  GraphedStep(Step& step, loader::BatchSource& images, std::int64_t samples,
              accelerator::GraphFactory make_graph);

  /// Returns whether the step can be replayed; one that cannot is to be taken eagerly. Called once
  /// for each step, since it counts the warm-up. All ranks decide alike: either all of them or none
  /// must capture a collective.
  bool can_replay(const PlannedStep& next);
  /// Returns whether captured steps gather their samples themselves; else `load` brings them.
  bool gathers_itself() const { return images_.can_gather_at(); }
  /// Copies a batch to where captured steps read this rank's shard `number`.
  void load(std::size_t number, loader::Batch batch);
  /// Takes the first of the planned steps, each of one batch, or all of `kStepsAtOnce` if they are
  /// as captured; adds their sums to the step's log and returns how many they are. Collective.
  /// Throws as Step does, and Error(kRunFailed) if the step cannot be captured.
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
  std::unique_ptr<accelerator::DeviceGraph> many_;  // null until there are so many steps to take

  // What captured steps read and write, on the device.
  at::Tensor rates_;                   // [kStepsAtOnce, 2], one row a step of a replay
  std::vector<StepRates> set_rates_;   // the rows that are in there
  std::vector<at::Tensor> positions_;  // by shard: [n] i64 of the next step's samples; `gather_at`
  std::int64_t next_position_ = -1;    // the first of them
  std::vector<loader::Batch> inputs_;  // instead of them, where samples have to be brought
  at::Tensor sums_;                    // [kStepsAtOnce, StepLog::kScalars], one row a step
};

/// Returns why the step cannot be captured, whatever averages its gradients, or null.
const char* obstacle_to_capture(const settings::TrainOptions& options, const TrainerSetup& setup,
                                const BatchPartition& partition, const models::Model& model);

}  // namespace mnist_train::train
