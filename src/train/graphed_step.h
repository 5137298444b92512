#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "accelerator/device.h"
#include "loader/batch_source.h"
#include "train/step.h"
#include "train/step_history.h"
#include "train/trainer_setup.h"

namespace mnist_train::train {

/// An optimizer step that is to be taken.
struct PlannedStep {
  StepBatches batches;
  std::vector<std::int64_t> shard_sizes;  // samples of each shard, in all batches
  std::vector<data::Range> shards;        // this rank's of the first batch, in its order
  StepRates rates;
};

/// Takes a step without a graph, and adds its sums to `history`. Collective. Throws as `Step::run`
/// does.
void take_eagerly(Step& step, const PlannedStep& planned, StepHistory& history);

/// Returns the step that comes after `number` others.
using Plan = std::function<PlannedStep(std::int64_t number)>;

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

  /// Takes the next of the planned steps, each of one batch, or the next `kStepsAtOnce` where so
  /// many may be taken; adds their sums to `history` and returns how many they are. All ranks
  /// decide alike, since either all of them or none must capture a collective. Collective. Throws
  /// as `Step::run` does, and Error(kRunFailed) when the step cannot be captured.
  std::int64_t run(const Plan& plan, std::int64_t most, StepHistory& history);

 private:
  bool can_replay(const PlannedStep& next);
  std::vector<StepRates> rates_of_many(const PlannedStep& next, const Plan& plan) const;
  bool gathers_itself() const { return !positions_.empty(); }
  void make_inputs(const PlannedStep& first);
  void set_rates(const std::vector<StepRates>& rates);
  void set_positions(const std::vector<data::Range>& shards);
  void load(const PlannedStep& next);
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
  at::Tensor sums_;                    // [kStepsAtOnce, StepStats::kScalars], one row a step
};

/// Returns why the step cannot be captured, whatever averages its gradients, or null.
const char* obstacle_to_capture(const settings::TrainOptions& options, const TrainerSetup& setup,
                                const BatchPartition& partition, const models::Model& model);

}  // namespace mnist_train::train
