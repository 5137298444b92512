#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "comm/communicator.h"
#include "comm/gradient_averager.h"
#include "loader/batch_source.h"
#include "models/model.h"
#include "settings/train_options.h"
#include "train/batch_partition.h"
#include "train/flat_parameters.h"
#include "train/graphed_step.h"
#include "train/optimizer.h"
#include "train/progress.h"
#include "train/schedule.h"
#include "train/step.h"
#include "train/step_times.h"

namespace mnist_train::train {

/// One rank's half of training: model, optimizer and the cursor through the epochs. All ranks hold
/// the same state after every step; each sees its share of the global batch.
class Trainer {
 public:
  /// `model` is moved to the device of `images`. `bf16_model`, another one of its kind whose
  /// weights do not matter, makes training compute in bf16, on images of that type; weights,
  /// optimizer and statistics stay fp32 in `model`. `graph`, where there is one, records the
  /// step unless something speaks against it: Error(kConfig) if the options insist.
  Trainer(const settings::TrainOptions& options, std::shared_ptr<models::Model> model,
          loader::BatchSource& images, const comm::Communicator& communicator, at::Device device,
          std::shared_ptr<models::Model> bf16_model = nullptr, const PartitionOptions& sharing = {},
          std::unique_ptr<comm::DeviceGraph> graph = nullptr);

  /// Fixes the order of the epoch that the cursor stands in. Collective the first time, from when
  /// on weights and optimizer state are changed by steps alone.
  void begin_epoch();
  bool epoch_done() const;
  /// Collective: trains on the next global batches of one optimizer step, which the epoch's end may
  /// cut short.
  void step(bool stop_requested);
  /// Sums of the epoch so far; on a GPU this waits. Throws Error(kRunFailed) on a loss that is not
  /// finite.
  const StepSums& read_sums();
  /// Notes the epoch's result and moves the cursor to the start of the next one. `chosen_by`: the
  /// accuracy that the best epoch is chosen by. An epoch that `max_steps` cut short stays open, so
  /// that a longer run can go on inside it.
  void end_epoch(double test_accuracy, double chosen_by, double test_seconds);

  /// All epochs or steps are done, or the accuracy to stop at is reached.
  bool run_done() const;
  /// Of the last step.
  double learning_rate() const { return learning_rate_; }
  /// Samples of a whole optimizer step, over all ranks and accumulated batches.
  std::int64_t samples_per_step() const {
    return global_batch_size_ * options_.gradient_accumulation_steps;
  }
  std::int64_t steps_per_epoch() const;
  std::int64_t samples_per_epoch() const { return images_.count(); }
  /// Collective: running statistics become rank 0's, which are those that are evaluated and saved,
  /// as in PyTorch's DDP.
  void broadcast_buffers();
  /// Collective: the last step's averaged gradients become whole on every rank.
  void gather_gradients();

  Progress& progress() { return progress_; }
  const Progress& progress() const { return progress_; }
  /// The weights in fp32: what is evaluated and saved.
  models::Model& model() { return *model_; }
  const models::Model& model() const { return *model_; }
  const FlatParameters& parameters() const { return parameters_; }
  Optimizer& optimizer() { return *optimizer_; }
  const Optimizer& optimizer() const { return *optimizer_; }
  /// Sums of the last global batch; on a GPU this waits.
  StepSums last_step_sums() const { return step_.last(); }
  const BatchPartition& split() const { return *partition_; }
  /// Of this rank, since `begin_epoch`; without steps on a GPU.
  const StepTimes& times() const { return times_; }
  const char* averaging() const { return averager_->name(); }
  /// "graph": of full batches only the first steps are eager; or "eager".
  const char* execution() const { return graphed_step_ ? "graph" : "eager"; }
  const char* precision() const { return computing_model_ == model_ ? "fp32" : "bf16"; }

 private:
  void share_state();
  void expect_from(std::int64_t begin);
  const char* cuda_graph_obstacle() const;  // null: nothing speaks against it
  void set_up_cuda_graph(std::unique_ptr<comm::DeviceGraph> graph);
  void step_eagerly(data::Range all);
  loader::Batch gather_own(const std::vector<data::Range>& shares);
  std::vector<data::Range> share_out(data::Range global) const;
  void note_times(double seconds, double input_seconds);

  settings::TrainOptions options_;
  const comm::Communicator& communicator_;
  loader::BatchSource& images_;
  std::int64_t global_batch_size_;
  bool measures_times_;
  std::shared_ptr<models::Model> model_;
  std::shared_ptr<models::Model> computing_model_;
  std::unique_ptr<BatchPartition> partition_;
  FlatParameters parameters_;
  std::unique_ptr<comm::GradientAverager> averager_;
  std::unique_ptr<Optimizer> optimizer_;
  Step step_;
  std::optional<GraphedStep> graphed_step_;
  Schedule schedule_;
  bool shares_state_ = false;
  double learning_rate_ = 0;
  StepTimes times_;
  Progress progress_;
};

}  // namespace mnist_train::train
