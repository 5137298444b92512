#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "accelerator/device.h"
#include "loader/batch_source.h"
#include "models/model.h"
#include "settings/train_options.h"
#include "train/batch_partition.h"
#include "train/optimizer.h"
#include "train/schedule.h"
#include "train/step.h"

namespace mnist_train::train {

/// Creates a model of the run's architecture on the CPU, with its initial weights.
using ModelFactory = std::function<std::shared_ptr<models::Model>()>;

/// Arguments of a trainer besides the options.
struct TrainerSetup {
  ModelFactory make_model;
  /// Computes in bf16, on bf16 images; weights, optimizer and statistics remain fp32.
  bool bf16 = false;
  at::Device device = at::kCPU;
  PartitionOptions partition{};
  /// Creates graphs to capture the step, if possible; null: steps are always eager.
  accelerator::GraphFactory make_graph{};
  std::vector<float> class_weights{};  // per class; empty: all 1
};

/// One rank's part of training: model, optimizer, and the cursor through the epochs. All ranks have
/// the same weights and cursor after every step; each processes its shards of the global batch.
class Trainer {
 public:
  /// Collective. `images` and `communicator` must outlive the trainer. Throws SharedMemoryError,
  /// and Error(kConfig), for example if required CUDA graphs cannot capture the step.
  Trainer(const settings::TrainOptions& options, TrainerSetup setup, loader::BatchSource& images,
          const comm::Communicator& communicator);

  /// Sets the sample order of the current epoch and starts timing it. The first call is
  /// collective: it moves weights and optimizer state into shared memory if the averaging strategy
  /// uses it; from then on only steps may change them.
  void begin_epoch();
  bool epoch_done() const { return progress_.samples_into_epoch >= images_.count() || run_done(); }
  /// Runs one optimizer step, or several at once but at most `max_steps`, which must be the same on
  /// all ranks. The last step of an epoch may have fewer samples or batches. Collective.
  /// If StepLog requires it, synchronises with the device, and then throws like `synchronize`.
  void step(bool stop_requested, std::int64_t max_steps = 1);
  /// Waits for the device and updates the epoch's sums and time in `progress`. Collective. Throws
  /// Error(kRunFailed) on all ranks if the loss or an update is not finite, and PeerError.
  void synchronize();
  /// Returns whether a rank was asked to stop. All ranks see this at the same synchronisation.
  bool stop_requested() const { return progress_.epoch_sums.stop_requests > 0; }
  /// Records the epoch's result and moves the cursor to the start of the next one. An epoch cut
  /// short by `max_steps` remains unfinished, so that a longer run can resume inside it.
  void end_epoch(const EpochScores& scores);

  /// Returns the config key that ended the run, such as "epochs", or null if it has not ended.
  const char* ended_by() const;
  bool run_done() const { return ended_by() != nullptr; }
  /// Takes the steps up to the last synchronisation; each step is returned once.
  std::vector<FinishedStep> take_finished_steps() { return log_.take(); }
  /// Returns the number of samples of all ranks and accumulated batches in a full optimizer step.
  std::int64_t samples_per_step() const {
    return global_batch_size_ * options_.gradient_accumulation_steps;
  }
  std::int64_t steps_per_epoch() const {
    return data::steps_per_epoch(images_.count(), samples_per_step());
  }
  /// Replaces the evaluated model's buffers with rank 0's, like PyTorch's DDP. Collective.
  void broadcast_buffers();
  /// Gathers the last step's averaged gradients on every rank. Collective.
  void all_gather_gradients() {
    averager_->complete_sum();
    averager_->all_gather();
  }

  Progress& progress() { return progress_; }
  const Progress& progress() const { return progress_; }
  /// Returns the model that is evaluated and saved as the result: the EMA model if enabled.
  models::Model& evaluated_model() { return ema_ ? ema_->model() : *model_; }
  /// Returns the bf16 copy of the evaluated model, with rounded weights; null if there is none.
  models::Model* bf16_copy() { return ema_ ? nullptr : bf16_copy_.get(); }
  /// Returns the trained model, with fp32 weights.
  const models::Model& model() const { return *model_; }
  const FlatParameters& parameters() const { return parameters_; }
  Optimizer& optimizer() { return optimizer_; }
  const Optimizer& optimizer() const { return optimizer_; }
  EmaModel* ema() const { return ema_.get(); }  // null without `ema`
  const BatchPartition& partition() const { return *partition_; }
  /// Returns the sums of the last step. Waits for the GPU.
  StepSums last_step_sums() const { return log_.last_sums(); }
  /// Returns this rank's step times since `begin_epoch`; empty on a GPU.
  const StepTimes& times() const { return times_; }
  /// Returns the name of the averaging strategy (see GradientAverager::name).
  const char* averaging() const { return averager_->name(); }
  /// Returns "graph" if full batches are replayed after the first steps, else "eager".
  const char* execution() const { return graphed_step_ ? "graph" : "eager"; }
  const char* precision() const { return bf16_copy_ ? "bf16" : "fp32"; }

 private:
  models::Model& computing_model() { return bf16_copy_ ? *bf16_copy_ : *model_; }
  void start_from_state();
  void set_up_cuda_graph(TrainerSetup setup);
  PlannedStep plan(std::int64_t number) const;
  void run_eagerly(const PlannedStep& next);
  void replay(std::vector<PlannedStep>& steps, std::int64_t max_steps);
  loader::Batch gather(const PlannedStep& step, std::size_t batch, std::size_t shard);
  void prefetch(std::size_t done);

  settings::TrainOptions options_;
  const comm::Communicator& communicator_;
  loader::BatchSource& images_;
  at::Device device_;
  std::int64_t global_batch_size_;
  std::shared_ptr<models::Model> model_;
  std::shared_ptr<models::Model> bf16_copy_;  // null in fp32
  std::unique_ptr<BatchPartition> partition_;
  FlatParameters parameters_;
  std::unique_ptr<comm::GradientAverager> averager_;
  std::unique_ptr<EmaModel> ema_;  // null without `ema`
  Optimizer optimizer_;
  StepLog log_;
  std::unique_ptr<ClassWeights> class_weights_;  // null without `class_weights`
  Step step_;
  std::optional<GraphedStep> graphed_step_;
  Schedule schedule_;
  accelerator::RunAheadLimit run_ahead_limit_;
  bool has_started_ = false;
  double epoch_begin_s_ = 0;  // start of the epoch, minus its training time before a resume
  at::Tensor rates_;          // [3] on the device, for the next eager step
  double input_seconds_ = 0;  // of the current step
  StepTimes times_;
  Progress progress_;
};

}  // namespace mnist_train::train
