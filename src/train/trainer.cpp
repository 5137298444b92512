#include "train/trainer.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <torch/utils.h>

#include <algorithm>
#include <span>
#include <utility>

#include "base/print.h"
#include "base/system.h"
#include "data/epoch_draws.h"
#include "data/sampler.h"

namespace mnist_train::train {

namespace {

std::shared_ptr<models::Model> make_on_device(const TrainerSetup& setup, bool bf16) {
  auto model = setup.make_model();
  if (bf16) model->compute_in_bfloat16();
  model->to(setup.device);
  return model;
}

// A replay is one launch and costs the host microseconds; an eager step takes hundreds of launches.
constexpr int kReplaysAhead = 32;
constexpr int kEagerStepsAhead = 1;

// cuDNN's trials take seconds (H200: 0.7 for `net`, 6 for ResNet-18) and save up to 0.2 ms a step.
constexpr std::int64_t kMinStepsForTrials = 20'000;

/// Returns why the step cannot be captured, whatever the averaging strategy, or null.
const char* obstacle_to_capture(const settings::TrainOptions& options, const TrainerSetup& setup,
                                const BatchPartition& partition, const models::Model& model) {
  if (model.is_external()) return "the network is external code";
  if (!setup.make_graph) return "the processes run on CPUs, or on different kinds of devices";
  if (options.gradient_accumulation_steps > 1) return "gradient_accumulation_steps is above 1";
  if (partition.statistics() > 0) return "data.split is throughput";
  return nullptr;
}

/// Returns whether averaging may overlap with the backward pass. It may not if ranks measure their
/// speed, because they would wait for each other in backward, or if steps can be captured, which
/// saves more time than overlap and rules it out.
bool may_overlap(const settings::TrainOptions& options, const TrainerSetup& setup,
                 const BatchPartition& partition, const models::Model& model,
                 const comm::Communicator& communicator) {
  const bool captures = communicator.reduces_on_device() &&
                        obstacle_to_capture(options, setup, partition, model) == nullptr;
  return partition.statistics() == 0 && !captures;
}

/// Returns how this rank's gradients are summed. With one shard per rank and step, bf16 gradients
/// may remain bf16 until the reduction, if the averager accepts them.
ShardLayout shard_layout(const settings::TrainOptions& options, const BatchPartition& partition,
                         const comm::Communicator& communicator, at::Device device) {
  const bool one_shard =
      partition.shards() == communicator.world_size() && options.gradient_accumulation_steps == 1;
  const auto strategy = options.gradient_averaging.strategy;
  const bool takes_bf16 =
      device.is_cpu() &&
      (communicator.alone() || strategy == settings::AveragingStrategy::kSharedMemory);
  return {comm::SummationTree(partition.begins()), communicator.rank(), takes_bf16 && one_shard};
}

}  // namespace

Trainer::Trainer(const settings::TrainOptions& options, TrainerSetup setup,
                 loader::BatchSource& images, const comm::Communicator& communicator)
    : options_(comm::share_memory_if_possible(options, communicator, setup.device)),
      communicator_(communicator),
      images_(images),
      device_(setup.device),
      global_batch_size_(settings::global_batch_size(options, communicator.world_size())),
      model_(make_on_device(setup, /*bf16=*/false)),
      bf16_copy_(setup.bf16 ? make_on_device(setup, /*bf16=*/true) : nullptr),
      partition_(make_batch_partition(setup.partition, communicator, device_)),
      parameters_(
          *model_,
          StepLog::kScalars + partition_->statistics() +
              (options.shards ? ShardBuffers::elements(*model_) : 0),
          bf16_copy_.get(), shard_layout(options_, *partition_, communicator, device_),
          settings::parameter_settings(options.parameters, model_->named_parameters().keys(),
                                       model_->frozen_parameters())),
      averager_(comm::make_gradient_averager(
          options_, communicator, parameters_.gradient_buffer(),
          may_overlap(options, setup, *partition_, *model_, communicator))),
      ema_(options.ema ? std::make_unique<EmaModel>(*model_, parameters_,
                                                    make_on_device(setup, /*bf16=*/false))
                       : nullptr),
      optimizer_(options, parameters_, averager_->owned_slice(), ema_.get()),
      log_(parameters_.statistics(), parameters_.shard_statistics(), communicator,
           /*runs_ahead=*/!device_.is_cpu()),
      class_weights_(setup.class_weights.empty()
                         ? nullptr
                         : std::make_unique<ClassWeights>(setup.class_weights, images)),
      step_(options, computing_model(), parameters_, *partition_, *averager_, optimizer_, log_,
            class_weights_ ? accelerator::to_device(at::tensor(setup.class_weights), device_)
                           : at::Tensor()),
      schedule_(options, steps_per_epoch(),
                schedule_span(options, {}, images.count(), samples_per_step())),
      run_ahead_limit_(device_, kEagerStepsAhead),
      rates_(at::zeros({3}, parameters_.values().options().dtype(step_.rates_type()))) {
  if (options.sync_batch_norm && !communicator.alone()) {
    computing_model().synchronize_batch_norm([this](at::Tensor& sums) {
      if (!averager_->all_reduce_small(sums)) communicator_.all_reduce_sum(sums);
    });
  }
  if (model_->needs_sample_seeds()) images_.draw_seeds(options_.seed);
  if (!device_.is_cpu() && !options.deterministic) {
    const ScheduleSpan run = schedule_span(options, {}, images.count(), samples_per_step());
    at::globalContext().setBenchmarkCuDNN(run.total_steps > kMinStepsForTrials);
  }
  set_up_cuda_graph(std::move(setup));
}

void Trainer::set_up_cuda_graph(TrainerSetup setup) {
  const char* obstacle = obstacle_to_capture(options_, setup, *partition_, *model_);
  if (obstacle == nullptr && !averager_->capturable()) {
    obstacle = "gradients are not averaged by a single NCCL all-reduce";
  }
  if (obstacle == nullptr) {
    graphed_step_.emplace(step_, images_, samples_per_step(), std::move(setup.make_graph));
    run_ahead_limit_ = {device_, kReplaysAhead};
  } else if (options_.cuda_graphs == settings::CudaGraphs::kOn) {
    refuse("cuda_graphs is \"on\", but the training step cannot be captured: {}", obstacle);
  }
}

void Trainer::broadcast_buffers() {
  const at::NoGradGuard no_grad;
  for (at::Tensor buffer : evaluated_model().buffers()) communicator_.broadcast(buffer);
}

void Trainer::begin_epoch() {
  if (!has_started_) start_from_state();
  computing_model().train();
  images_.set_order(
      partition_->order_of(communicator_.rank(), images_.count(), options_.seed, progress_.epoch),
      progress_.epoch);
  if (class_weights_) class_weights_->begin_epoch(*partition_, options_.seed, progress_.epoch);
  times_ = {};
  log_.begin_epoch();
  epoch_begin_s_ = monotonic_seconds() - progress_.epoch_train_seconds;
}

/// Starts from the current weights, optimizer state and progress, either new or restored. In a new
/// run, the EMA starts from the current weights.
void Trainer::start_from_state() {
  has_started_ = true;
  schedule_ = Schedule(options_, steps_per_epoch(),
                       schedule_span(options_, progress_, images_.count(), samples_per_step()));
  if (ema_ && progress_.step == 0) ema_->restart();
  parameters_.refresh_bf16_copy();
  std::vector<at::Tensor> state{parameters_.weights()};
  if (parameters_.bf16_values().numel() > 0) state.push_back(parameters_.bf16_values());
  for (const OptimizerTensor& tensor : optimizer_.state()) state.push_back(tensor.flat);
  if (ema_) state.push_back(ema_->values());
  averager_->move_to_shared_memory(state);
}

const char* Trainer::ended_by() const {
  const auto& accuracy = options_.stop_at_accuracy;
  const auto& early = options_.early_stopping;
  if (progress_.epoch >= options_.epochs) return "epochs";
  if (options_.max_steps && progress_.step >= *options_.max_steps) return "max_steps";
  if (accuracy && progress_.highest_accuracy >= *accuracy) return "stop_at_accuracy";
  if (early && progress_.early_stopping.bad_epochs >= early->patience) return "early_stopping";
  return nullptr;
}

void Trainer::step(bool stop_requested, std::int64_t max_steps) {
  const double begin_s = monotonic_seconds();
  input_seconds_ = 0;
  log_.request_stop(stop_requested);
  std::vector<PlannedStep> steps{plan(0)};
  if (graphed_step_ && graphed_step_->can_replay(steps.front())) {
    replay(steps, max_steps);
  } else {
    run_eagerly(steps.front());
  }
  run_ahead_limit_.step_launched();
  if (device_.is_cpu()) {  // a GPU computes asynchronously
    const double step_s = monotonic_seconds() - begin_s;
    times_.input_s += input_seconds_;
    times_.communication_s += step_.averaging_seconds();
    times_.compute_s += step_s - input_seconds_ - step_.averaging_seconds();
    ++times_.steps;
  }
  for (const PlannedStep& launched : steps) {
    progress_.samples_into_epoch += launched.samples;
    progress_.samples_seen += launched.samples;
    ++progress_.step;
    log_.describe_next(progress_.step, progress_.samples_seen, launched.rates.learning_rate);
  }
  if (!log_.is_due_after(std::ssize(steps))) return;
  synchronize();
  log_.set_next_interval();
}

/// Plans the step that is `number` steps ahead. It has no samples if the epoch ends before it.
PlannedStep Trainer::plan(std::int64_t number) const {
  const std::int64_t begin = progress_.samples_into_epoch + number * samples_per_step();
  const std::int64_t end = std::min(begin + samples_per_step(), images_.count());
  PlannedStep planned;
  planned.samples = std::max<std::int64_t>(0, end - begin);
  planned.shard_sizes.resize(static_cast<std::size_t>(partition_->shards()));
  planned.local = partition_->local_shards();
  const std::int64_t step = progress_.step + number;
  planned.rates.learning_rate = schedule_.learning_rate(step, progress_.plateau);
  if (options_.ema) planned.rates.average_weight = average_weight(options_.ema->decay, step + 1);
  for (std::int64_t next = begin; next < end; next += global_batch_size_) {
    const data::Range global{next, std::min(next + global_batch_size_, images_.count())};
    std::vector<data::Range>& shards = planned.batches.emplace_back();
    for (std::size_t i = 0; i < planned.shard_sizes.size(); ++i) {
      shards.push_back(partition_->shard(global, static_cast<std::int64_t>(i)));
      planned.shard_sizes[i] += shards.back().size();
    }
  }
  if (class_weights_) planned.rates.loss_factor = class_weights_->factor(planned.batches);
  return planned;
}

void Trainer::run_eagerly(const PlannedStep& next) {
  rates_.select(0, 0).fill_(next.rates.learning_rate);
  if (ema_) rates_.select(0, 1).fill_(next.rates.average_weight);
  if (class_weights_) rates_.select(0, 2).fill_(next.rates.loss_factor);
  step_.begin(next.samples, static_cast<std::int64_t>(next.batches.size()), rates_);
  for (std::size_t shard = 0; shard < static_cast<std::size_t>(next.local.size()); ++shard) {
    for (std::size_t batch = 0; batch < next.batches.size(); ++batch) {
      step_.add(gather(next, batch, shard));
    }
  }
  step_.finish(rates_);
  log_.append(log_.scalars().unsqueeze(0));
  partition_->update(log_.extra_scalars(), next.shard_sizes);
}

/// Replays the planned step in `steps`, or several steps, and appends the plans of the others.
void Trainer::replay(std::vector<PlannedStep>& steps, std::int64_t max_steps) {
  max_steps = std::min({max_steps, log_.steps_left(), GraphedStep::kStepsAtOnce});
  if (options_.max_steps) max_steps = std::min(max_steps, *options_.max_steps - progress_.step);
  if (graphed_step_->gathers_samples()) {
    if (max_steps < GraphedStep::kStepsAtOnce) max_steps = 1;
    for (std::int64_t number = 1; number < max_steps; ++number) steps.push_back(plan(number));
  } else {
    const PlannedStep& next = steps.front();
    for (std::size_t shard = 0; shard < static_cast<std::size_t>(next.local.size()); ++shard) {
      graphed_step_->load(shard, gather(next, 0, shard));
    }
  }
  steps.resize(static_cast<std::size_t>(graphed_step_->replay(steps)));
}

/// Gathers this rank's shard `shard` of batch `batch`; the result is valid until the next call.
loader::Batch Trainer::gather(const PlannedStep& step, std::size_t batch, std::size_t shard) {
  const double begin_s = monotonic_seconds();
  const std::size_t number = static_cast<std::size_t>(step.local.begin) + shard;
  if (images_.images().encoded) prefetch(shard * step.batches.size() + batch);
  if (batch == 0 && model_->is_external()) {
    // With a seed per step and shard, a run can resume without a saved generator state.
    torch::manual_seed(
        data::generator_seed(options_.seed, progress_.step, static_cast<std::int64_t>(number)));
  }
  const std::vector<data::Range>& all = step.batches[batch];
  loader::Batch gathered =
      images_.gather({.range = all[number], .next = all[(number + 1) % all.size()]});
  input_seconds_ += monotonic_seconds() - begin_s;
  return gathered;
}

/// Prefetches the batches that this rank gathers after the first `done` batches of the next step,
/// so that they are decoded while earlier ones are processed.
void Trainer::prefetch(std::size_t done) {
  std::vector<data::Range> ranges;
  for (std::int64_t ahead = 0; ranges.size() < done + loader::BatchSource::kBatchesAhead; ++ahead) {
    const PlannedStep step = plan(ahead);
    if (step.batches.empty()) break;
    for (std::int64_t number = step.local.begin; number < step.local.end; ++number) {
      for (const std::vector<data::Range>& shards : step.batches) {
        ranges.push_back(shards[static_cast<std::size_t>(number)]);
      }
    }
  }
  images_.prefetch(std::span(ranges).subspan(done), loader::Order::kEpoch);
}

void Trainer::synchronize() {
  const auto steps = log_.synchronize(progress_.epoch_sums);
  progress_.epoch_train_seconds = monotonic_seconds() - epoch_begin_s_;
  for (const FinishedStep& finished : steps) require_finite(finished.sums, finished.step);
}

void Trainer::end_epoch(const EpochScores& scores) {
  progress_.test_seconds += scores.seconds;
  if (progress_.best_step < 0 || scores.best_score > progress_.best_score) {
    progress_.best_score = scores.best_score;
    progress_.best_accuracy = scores.selection_accuracy;
    progress_.best_test_accuracy = scores.test_accuracy;
    progress_.best_epoch = progress_.last_epoch();
    progress_.best_step = progress_.step;
  }
  if (progress_.samples_into_epoch < images_.count()) return;
  progress_.highest_accuracy = std::max(progress_.highest_accuracy, scores.selection_accuracy);
  schedule_.epoch_finished(scores.selection_loss, progress_.plateau);
  if (options_.early_stopping) {
    // Small improvements count once they add up to more than `min_delta`.
    EarlyStoppingState& state = progress_.early_stopping;
    const bool improved =
        scores.stopping_accuracy > state.best_accuracy + options_.early_stopping->min_delta;
    state = improved ? EarlyStoppingState{scores.stopping_accuracy, 0}
                     : EarlyStoppingState{state.best_accuracy, state.bad_epochs + 1};
  }
  ++progress_.epoch;
  progress_.samples_into_epoch = 0;
  progress_.epoch_sums = {};
  progress_.accuracies.push_back(scores.test_accuracy);
  progress_.train_seconds += progress_.epoch_train_seconds;
  progress_.epoch_train_seconds = 0;
}

}  // namespace mnist_train::train
