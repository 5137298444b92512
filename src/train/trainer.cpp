#include "train/trainer.h"

#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <string>
#include <utility>

#include "base/clock.h"
#include "base/error.h"
#include "data/sampler.h"

namespace mnist_train::train {

namespace {

std::shared_ptr<models::Model> on_device(std::shared_ptr<models::Model> model, at::Device device) {
  model->to(device);
  return model;
}

std::shared_ptr<models::Model> in_bfloat16(std::shared_ptr<models::Model> model,
                                           at::Device device) {
  model->compute_in_bfloat16();
  return on_device(std::move(model), device);
}

std::int64_t total_steps(const settings::TrainOptions& options, std::int64_t steps_per_epoch) {
  const std::int64_t steps = options.epochs * steps_per_epoch;
  return options.max_steps ? std::min(steps, *options.max_steps) : steps;
}

comm::GradientBuffer gradient_buffer(const FlatParameters& parameters) {
  return {parameters.parameters(), parameters.gradients_and_riders(), parameters.riders().numel()};
}

}  // namespace

Trainer::Trainer(const settings::TrainOptions& options, std::shared_ptr<models::Model> model,
                 loader::BatchSource& images, const comm::Communicator& communicator,
                 at::Device device, std::shared_ptr<models::Model> bf16_model,
                 const PartitionOptions& sharing, std::unique_ptr<comm::DeviceGraph> graph)
    : options_(options),
      communicator_(communicator),
      images_(images),
      global_batch_size_(settings::global_batch_size(options, communicator.world_size())),
      measures_times_(device.is_cpu()),
      model_(on_device(std::move(model), device)),
      computing_model_(bf16_model ? in_bfloat16(std::move(bf16_model), device) : model_),
      partition_(make_batch_partition(sharing, communicator, device)),
      parameters_(*model_, Step::kRiders + partition_->riders(),
                  computing_model_ == model_ ? nullptr : computing_model_.get()),
      // Who waits for the others in backward cannot measure his own.
      averager_(
          comm::make_gradient_averager(options, communicator, gradient_buffer(parameters_),
                                       /*may_overlap=*/sharing.split == settings::Split::kEven)),
      optimizer_(make_optimizer(options, parameters_, averager_->owned_shard())),
      step_(options, computing_model_, parameters_, *averager_, *optimizer_),
      schedule_(options, steps_per_epoch(), total_steps(options, steps_per_epoch())) {
  if (options.sync_batch_norm && !communicator.alone()) {
    computing_model_->synchronize_batch_norm(
        [this](at::Tensor& sums) { communicator_.all_reduce_sum(sums); });
  }
  set_up_cuda_graph(std::move(graph));
}

const char* Trainer::cuda_graph_obstacle() const {
  if (options_.gradient_accumulation_steps > 1) return "gradient_accumulation_steps is above 1";
  if (options_.sync_batch_norm && !communicator_.alone()) return "sync_batch_norm is on";
  if (partition_->riders() > 0) return "data.split is throughput";
  if (!averager_->capturable()) return "gradients are not averaged by one all-reduce of NCCL";
  return nullptr;
}

void Trainer::set_up_cuda_graph(std::unique_ptr<comm::DeviceGraph> graph) {
  const char* const obstacle = graph
                                   ? cuda_graph_obstacle()
                                   : "the processes compute on CPUs, or on several kinds of device";
  if (obstacle == nullptr) {
    graphed_step_.emplace(step_, samples_per_step(), std::move(graph));
  } else if (options_.cuda_graphs == settings::CudaGraphs::kOn) {
    throw Error(ExitCode::kConfig, std::string("cuda_graphs is \"on\", and the training step ") +
                                       "cannot be recorded: " + obstacle);
  }
}

std::int64_t Trainer::steps_per_epoch() const {
  return data::steps_per_epoch(images_.count(), samples_per_step());
}

void Trainer::broadcast_buffers() {
  const at::NoGradGuard no_grad;
  for (at::Tensor buffer : model_->buffers()) communicator_.broadcast(buffer);
}

void Trainer::begin_epoch() {
  if (!shares_state_) share_state();
  computing_model_->train();
  images_.set_order(partition_->order(images_.count(), options_.seed, progress_.epoch),
                    progress_.epoch);
  step_.restart_totals(progress_.epoch_sums);
  times_ = {};
}

/// Weights and optimizer state are those that the run starts with: a checkpoint's, or new ones.
void Trainer::share_state() {
  shares_state_ = true;
  parameters_.refresh_bf16_copy({0, parameters_.values().numel()});
  std::vector<at::Tensor> state{parameters_.values()};
  if (parameters_.bf16_values().numel() > 0) state.push_back(parameters_.bf16_values());
  for (OptimizerTensor& tensor : optimizer_->state()) state.push_back(std::move(tensor.flat));
  averager_->move_to_shared_memory(state);
}

void Trainer::gather_gradients() { averager_->all_gather(); }

bool Trainer::epoch_done() const {
  return progress_.samples_into_epoch >= images_.count() || run_done();
}

bool Trainer::run_done() const {
  return progress_.epoch >= options_.epochs ||
         (options_.max_steps && progress_.step >= *options_.max_steps) ||
         (options_.stop_at_accuracy && progress_.best_accuracy >= *options_.stop_at_accuracy);
}

void Trainer::step(bool stop_requested) {
  const std::int64_t begin = progress_.samples_into_epoch;
  const std::int64_t end = std::min(begin + samples_per_step(), images_.count());
  learning_rate_ = schedule_.learning_rate(progress_.step);
  step_.set(learning_rate_, stop_requested);
  if (graphed_step_) {
    expect_from(begin);
    const std::vector<data::Range> shares = share_out({begin, end});
    std::vector<std::int64_t> sizes;
    sizes.reserve(shares.size());
    for (const data::Range& share : shares) sizes.push_back(share.size());
    graphed_step_->run(gather_own(shares), sizes);
  } else {
    step_eagerly({begin, end});
  }
  progress_.samples_into_epoch = end;
  progress_.samples_seen += end - begin;
  ++progress_.step;
}

void Trainer::step_eagerly(data::Range all) {
  const double begin_s = monotonic_seconds();
  double input_seconds = 0;
  double busy_s = 0;
  std::vector<std::int64_t> samples(static_cast<std::size_t>(communicator_.world_size()));
  step_.begin();
  for (std::int64_t next = all.begin; next < all.end; next += global_batch_size_) {
    const data::Range global{next, std::min(next + global_batch_size_, all.end)};
    const std::vector<data::Range> shares = share_out(global);
    for (std::size_t rank = 0; rank < shares.size(); ++rank) samples[rank] += shares[rank].size();
    expect_from(next);
    const double gather_s = monotonic_seconds();
    const double busy_begin_s = partition_->clock();
    const loader::Batch batch = gather_own(shares);
    input_seconds += monotonic_seconds() - gather_s;
    step_.accumulate(batch, all.size(), /*last=*/global.end == all.end);
    busy_s += partition_->clock() - busy_begin_s;
  }
  const at::Tensor riders = parameters_.riders().narrow(0, Step::kRiders, partition_->riders());
  partition_->record(busy_s, riders);
  step_.finish();
  partition_->update(riders, samples);
  if (measures_times_) note_times(monotonic_seconds() - begin_s, input_seconds);
}

/// What is decoded as it is used begins while the batches before it are computed.
void Trainer::expect_from(std::int64_t begin) {
  std::vector<data::Range> next;
  for (; next.size() < loader::BatchSource::kBatchesAhead && begin < images_.count();
       begin += global_batch_size_) {
    next.push_back(partition_->shard({begin, std::min(begin + global_batch_size_, images_.count())},
                                     communicator_.rank()));
  }
  images_.prefetch(next);
}

loader::Batch Trainer::gather_own(const std::vector<data::Range>& shares) {
  const auto mine = static_cast<std::size_t>(communicator_.rank());
  return images_.gather(shares[mine], shares[(mine + 1) % shares.size()].size());
}

void Trainer::note_times(double seconds, double input_seconds) {
  const double communication_seconds = step_.averaging_seconds();
  times_.input += input_seconds;
  times_.communication += communication_seconds;
  times_.compute += seconds - input_seconds - communication_seconds;
  times_.steps.push_back(seconds);
}

/// By rank.
std::vector<data::Range> Trainer::share_out(data::Range global) const {
  std::vector<data::Range> shares;
  shares.reserve(static_cast<std::size_t>(communicator_.world_size()));
  for (int rank = 0; rank < communicator_.world_size(); ++rank) {
    shares.push_back(partition_->shard(global, rank));
  }
  return shares;
}

const StepSums& Trainer::read_sums() {
  // What a graph launches nobody times. This all-reduce waits for it, and c10d times this one.
  if (graphed_step_) communicator_.barrier_on_device();
  progress_.epoch_sums = step_.totals();
  require_finite(progress_.epoch_sums, progress_.step);
  return progress_.epoch_sums;
}

void Trainer::end_epoch(double test_accuracy, double chosen_by, double test_seconds) {
  progress_.test_seconds += test_seconds;
  if (chosen_by > progress_.best_accuracy) {
    progress_.best_accuracy = chosen_by;
    progress_.best_step = progress_.step;
  }
  if (progress_.samples_into_epoch < images_.count()) return;
  ++progress_.epoch;
  progress_.samples_into_epoch = 0;
  progress_.epoch_sums = {};
  progress_.accuracies.push_back(test_accuracy);
  progress_.train_seconds += progress_.epoch_train_seconds;
  progress_.epoch_train_seconds = 0;
}

}  // namespace mnist_train::train
