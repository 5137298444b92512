#include "train/step.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/_foreach_copy.h>
#include <ATen/ops/_foreach_sub.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/error.h"

namespace mnist_train::train {

namespace {

constexpr int kWarmUpSteps = 3;         // before a step is captured
constexpr double kMaxInterval_s = 0.5;  // between two synchronisations

enum Slot : std::int64_t { kLoss, kCorrect, kSamples, kStop };

/// Converts scalars, [kScalars] f32 in host memory, to sums.
StepSums to_sums(const at::Tensor& scalars) {
  const auto* values = scalars.const_data_ptr<float>();
  return {values[kLoss], values[kCorrect], values[kSamples], values[kStop]};
}

/// Returns the buffers that training may change: all except masks.
std::vector<at::Tensor> changing_buffers(const torch::nn::Module& model) {
  std::vector<at::Tensor> buffers = model.buffers();
  std::erase_if(buffers, models::is_mask);
  return buffers;
}

/// Returns consecutive views of `flat` with the shapes of the buffers.
std::vector<at::Tensor> views_like(const std::vector<at::Tensor>& buffers, const at::Tensor& flat) {
  std::vector<at::Tensor> views;
  std::int64_t begin = 0;
  for (const at::Tensor& buffer : buffers) {
    views.push_back(flat.narrow(0, begin, buffer.numel()).view(buffer.sizes()));
    begin += buffer.numel();
  }
  return views;
}

}  // namespace

StepLog::StepLog(const at::Tensor& summed, at::Tensor shard_sums,
                 const comm::Communicator& communicator, bool runs_ahead)
    : communicator_(communicator),
      shard_sums_(std::move(shard_sums)),
      scalars_(summed.narrow(0, 0, kScalars)),
      update_check_(scalars_[kStop]),
      extra_scalars_(summed.narrow(0, kScalars, summed.numel() - kScalars)),
      initial_(at::zeros_like(summed)),
      rows_(at::empty({kSteps, kScalars},
                      at::TensorOptions(at::kFloat).pinned_memory(!summed.is_cpu()))),
      any_runs_ahead_(communicator.sum_over_ranks(runs_ahead ? 1 : 0) > 0) {}

void StepLog::request_stop(bool requested) {
  if (requested == requests_stop_) return;
  requests_stop_ = requested;
  initial_[kStop].fill_(requested ? 1 : 0);
}

StepSums StepLog::last_sums() const { return to_sums(accelerator::to_host(scalars_)); }

void StepLog::begin_epoch() {
  begin_s_ = monotonic_seconds();
  steps_ = 0;
  synced_s_ = begin_s_;
}

void StepLog::append(const at::Tensor& sums) {
  rows_.narrow(0, rows_used_, sums.size(0)).copy_(sums, /*non_blocking=*/true);
  rows_used_ += sums.size(0);
}

std::span<const FinishedStep> StepLog::synchronize(StepSums& sums) {
  accelerator::synchronize(scalars_.device());
  const double now_s = monotonic_seconds();
  const double step_s =
      (now_s - begin_s_) / static_cast<double>(std::max<std::int64_t>(1, rows_used_));
  for (std::int64_t i = 0; i < rows_used_; ++i) {
    FinishedStep& step = finished_.emplace_back(unfinished_.at(static_cast<std::size_t>(i)));
    step.sums = to_sums(rows_.select(0, i));
    step.finished_s = begin_s_ + step_s * static_cast<double>(i + 1);
    sums.loss += step.sums.loss;
    sums.correct += step.sums.correct;
    sums.samples += step.sums.samples;
    sums.stop_requests += step.sums.stop_requests;
  }
  const std::size_t count = unfinished_.size();
  unfinished_.clear();
  rows_used_ = 0;
  begin_s_ = now_s;
  return std::span(finished_).last(count);
}

void StepLog::set_next_interval() {
  const double now_s = monotonic_seconds();
  if (any_runs_ahead_) {
    const std::int64_t local_interval = next_interval(steps_, now_s - synced_s_);
    const bool decides = communicator_.rank() == 0;
    interval_ = static_cast<std::int64_t>(
        communicator_.sum_over_ranks(decides ? static_cast<double>(local_interval) : 0));
  }
  steps_ = 0;
  synced_s_ = now_s;
}

std::int64_t next_interval(std::int64_t steps, double seconds) {
  // At most double the interval, because the few timed steps may have been fast by chance.
  const std::int64_t max_interval = std::min(2 * steps, StepLog::kSteps);
  const double interval = kMaxInterval_s * static_cast<double>(steps) / std::max(seconds, 1e-9);
  return interval < static_cast<double>(max_interval)
             ? std::max<std::int64_t>(1, static_cast<std::int64_t>(interval))
             : max_interval;
}

void require_finite(const StepSums& sums, std::int64_t step) {
  if (!std::isfinite(sums.loss)) {
    throw Error(ExitCode::kRunFailed,
                fmt::format("the loss became {} at step {}: lower learning_rate, or check for "
                            "corrupt samples",
                            std::isnan(sums.loss) ? "NaN" : "infinite", step));
  }
  if (!std::isnan(sums.stop_requests)) return;
  throw Error(ExitCode::kRunFailed,
              fmt::format("at step {} the loss is finite, but the weight update is not: lower "
                          "learning_rate; if gradient_averaging.compression is \"fp16\", set it "
                          "to \"bf16\" or \"none\", which have a larger range",
                          step));
}

std::int64_t ShardBuffers::elements(const torch::nn::Module& model) {
  std::int64_t count = 0;
  for (const at::Tensor& buffer : changing_buffers(model)) count += buffer.numel();
  return count;
}

ShardBuffers::ShardBuffers(const torch::nn::Module& model) : buffers_(changing_buffers(model)) {
  std::stable_partition(buffers_.begin(), buffers_.end(),
                        [](const at::Tensor& buffer) { return buffer.is_floating_point(); });
  for (const at::Tensor& buffer : buffers_) {
    saved_.push_back(buffer.clone());
    if (buffer.is_floating_point()) floating_elements_ += buffer.numel();
  }
}

void ShardBuffers::begin_step() {
  const at::NoGradGuard no_grad;
  at::_foreach_copy_(saved_, buffers_);
}

void ShardBuffers::begin_shard() {
  const at::NoGradGuard no_grad;
  at::_foreach_copy_(buffers_, saved_);
}

void ShardBuffers::end_shard(const at::Tensor& changes, double fraction, bool is_first) const {
  const at::NoGradGuard no_grad;
  at::_foreach_copy_(views_like(buffers_, changes), at::_foreach_sub(buffers_, saved_));
  changes.narrow(0, 0, floating_elements_).mul_(fraction);
  const std::int64_t rest = changes.numel() - floating_elements_;
  if (!is_first) changes.narrow(0, floating_elements_, rest).zero_();
}

void ShardBuffers::end_step(const at::Tensor& changes) {
  const at::NoGradGuard no_grad;
  begin_shard();
  const std::vector<at::Tensor> summed = views_like(buffers_, changes);
  for (std::size_t i = 0; i < buffers_.size(); ++i) {
    buffers_[i].add_(summed[i].to(buffers_[i].scalar_type()));
  }
}

Step::Step(const settings::TrainOptions& options, models::Model& model, FlatParameters& parameters,
           BatchPartition& partition, comm::GradientAverager& averager, Optimizer& optimizer,
           StepLog& log, at::Tensor class_weights)
    : options_(options),
      model_(model),
      parameters_(parameters),
      partition_(partition),
      averager_(averager),
      optimizer_(optimizer),
      log_(log),
      class_weights_(std::move(class_weights)) {
  if (options.shards && ShardBuffers::elements(model) > 0) buffers_.emplace(model);
}

void Step::begin(std::int64_t samples, std::int64_t batches, const at::Tensor& rates) {
  samples_ = samples;
  batches_ = batches;
  shard_ = 0;
  shard_batches_ = 0;
  if (class_weights_.defined()) scaled_class_weights_ = class_weights_ * rates.select(0, 2);
  averager_.begin();
  partition_.begin_work();
  if (buffers_) buffers_->begin_step();
}

void Step::add(const loader::Batch& batch) {
  if (shard_batches_ == 0) {
    shard_samples_ = 0;
    parameters_.begin_shard(shard_);
    if (!averager_.sends_in_backward()) {
      parameters_.set_destinations(model_.gradient_destinations());
    }
    log_.begin_shard(shard_ == 0);
    if (buffers_) buffers_->begin_shard();
  }
  const models::BackwardRoot root = forward(batch);
  ++shard_batches_;
  shard_samples_ += batch.size();
  const bool ends_shard = shard_batches_ == batches_;
  averager_.backward(root.tensor, root.gradient,
                     /*last=*/ends_shard && shard_ + 1 == parameters_.shards());
  parameters_.collect_gradients();
  if (!ends_shard) return;
  if (buffers_) {
    buffers_->end_shard(log_.shard_buffer_changes(),
                        static_cast<double>(shard_samples_) / static_cast<double>(samples_),
                        partition_.local_shards().begin == 0 && shard_ == 0);
  }
  parameters_.end_shard(shard_);
  ++shard_;
  shard_batches_ = 0;
}

void Step::finish(const at::Tensor& rates) {
  partition_.end_work(log_.extra_scalars());
  averaging_seconds_ = duration_s([&] {
    averager_.average();
    if (optimizer_.needs_sums()) averager_.complete_sum();
    if (optimizer_.clips()) averager_.all_gather();
  });
  if (buffers_) buffers_->end_step(log_.extra_scalars());
  // On a CPU, a non-finite loss never reaches the weights. On a GPU, this check would wait for the
  // device; instead, the next synchronisation ends the run before anything is saved.
  bool finite = true;
  if (!parameters_.values().is_cpu() || std::isfinite(log_.last_sums().loss)) {
    finite = optimizer_.update(averager_, rates, log_.update_check());
  }
  averaging_seconds_ += duration_s([&] { finite = averager_.end_update(finite); });
  if (!finite) log_.update_check().fill_(std::numeric_limits<float>::quiet_NaN());
}

/// Returns the root of the backward pass: the batch's contribution to the mean loss of the step.
/// Adds the batch's sums to the log.
models::BackwardRoot Step::forward(const loader::Batch& batch) {
  // Synchronised batch norm exchanges statistics in forward, so ranks without samples run it too.
  if (batch.size() == 0 && !model_.synchronizes_batch_norm()) return {zero_loss(), {}};
  model_.set_sample_seeds(batch.seeds);
  return models::training_loss(
      model_.forward(batch.images),
      {batch.labels, batch.other_labels, batch.weights, scaled_class_weights_},
      options_.label_smoothing, 1.0 / static_cast<double>(samples_), log_.sample_sums());
}

/// Returns a zero that depends on every parameter, so that ranks without samples have gradients.
at::Tensor Step::zero_loss() const {
  at::Tensor sum = at::zeros({}, parameters_.values().options());
  for (const at::Tensor& parameter : parameters_.parameters()) sum = sum + parameter.sum() * 0;
  return sum;
}

std::int64_t GraphedStep::replay(std::span<const PlannedStep> planned) {
  const PlannedStep& next = planned.front();
  if (!graph_) {
    const at::TensorOptions options = step_.log().scalars().options();
    sums_ = at::empty({kStepsAtOnce, StepLog::kScalars}, options);
    rates_ = at::empty({kStepsAtOnce, 3}, options.dtype(step_.rates_type()));
    for (std::int64_t number = 0; gathers_samples() && number < next.local.size(); ++number) {
      const std::int64_t count = next.local_shard(static_cast<std::size_t>(number)).size();
      positions_.push_back(at::empty({count + images_.samples_beyond()}, options.dtype(at::kLong)));
    }
    graph_ = make_graph_();
    capture(*graph_, 1);
  }
  const bool together = can_replay_together(planned);
  if (together && !large_graph_) {
    large_graph_ = make_graph_();
    capture(*large_graph_, kStepsAtOnce);
  }
  const std::int64_t steps = together ? kStepsAtOnce : 1;
  set_rates(planned.first(static_cast<std::size_t>(steps)));
  if (gathers_samples()) {
    set_positions(next);
    next_position_ += steps * samples_;
  }
  (together ? large_graph_ : graph_)->replay();
  step_.log().append(sums_.narrow(0, 0, steps));
  return steps;
}

/// Also counts the warm-up steps, in which libraries select their kernels, which they cannot do
/// during a capture; restarts the count if the shard sizes change.
bool GraphedStep::can_replay(const PlannedStep& next) {
  const std::vector<std::int64_t>& sizes = next.shard_sizes;
  const bool is_full = next.samples == samples_;
  if (!is_full || std::find(sizes.begin(), sizes.end(), 0) != sizes.end()) return false;
  if (graph_) return sizes == shard_sizes_;
  if (sizes != shard_sizes_) {
    shard_sizes_ = sizes;
    warm_up_steps_left_ = kWarmUpSteps;
  }
  return warm_up_steps_left_-- == 0;
}

/// Returns whether the planned steps match the larger graph: all have the captured sizes, and each
/// begins one global batch after the previous one.
bool GraphedStep::can_replay_together(std::span<const PlannedStep> planned) const {
  if (!gathers_samples() || planned.size() < static_cast<std::size_t>(kStepsAtOnce)) return false;
  std::int64_t begin = planned.front().local_shard(0).begin - samples_;
  return std::ranges::all_of(planned.first(kStepsAtOnce), [&](const PlannedStep& step) {
    begin += samples_;
    return step.samples == samples_ && step.shard_sizes == shard_sizes_ &&
           step.local_shard(0).begin == begin;
  });
}

void GraphedStep::capture(accelerator::DeviceGraph& graph, std::int64_t steps) {
  graph.capture([this, steps] {
    for (std::int64_t i = 0; i < steps; ++i) {
      step_.begin(samples_, /*batches=*/1, rates_.select(0, i));
      for (const at::Tensor& positions : positions_) {
        step_.add(images_.gather({.positions = positions, .advance = samples_}));
      }
      for (const loader::Batch& input : inputs_) step_.add(input);
      step_.finish(rates_.select(0, i));
      sums_.select(0, i).copy_(step_.log().scalars());
    }
  });
}

void GraphedStep::load(std::size_t number, loader::Batch batch) {
  if (number == inputs_.size()) {
    inputs_.push_back(batch);
    for (at::Tensor* tensor : inputs_.back().tensors()) {
      if (tensor->defined()) *tensor = at::empty_like(*tensor);
    }
  }
  const auto from = batch.tensors();
  const auto to = inputs_[number].tensors();
  for (std::size_t i = 0; i < to.size(); ++i) {
    if (to[i]->defined()) to[i]->copy_(*from[i]);
  }
}

void GraphedStep::set_rates(std::span<const PlannedStep> steps) {
  const auto last = std::span(last_rates_).first(std::min(last_rates_.size(), steps.size()));
  if (std::ranges::equal(steps, last, {}, &PlannedStep::rates)) return;
  std::vector<double> numbers;
  for (const PlannedStep& step : steps) {
    const auto& [learning_rate, average_weight, loss_factor] = step.rates;
    numbers.insert(numbers.end(), {learning_rate, average_weight, loss_factor});
  }
  const at::Tensor first = rates_.narrow(0, 0, std::ssize(steps));
  const at::Tensor rows = at::tensor(numbers, first.options().device(at::kCPU)).view({-1, 3});
  first.copy_(accelerator::to_device(rows, rates_.device()));
  if (last_rates_.size() < steps.size()) last_rates_.resize(steps.size());
  std::ranges::transform(steps, last_rates_.begin(), &PlannedStep::rates);
}

void GraphedStep::set_positions(const PlannedStep& next) {
  if (next_position_ == next.local_shard(0).begin) return;
  next_position_ = next.local_shard(0).begin;
  for (std::size_t number = 0; number < positions_.size(); ++number) {
    at::Tensor& device_positions = positions_[number];
    const std::int64_t begin = next.local_shard(number).begin;
    const at::Tensor positions =
        at::arange(begin, begin + device_positions.size(0), at::TensorOptions(at::kLong));
    device_positions.copy_(accelerator::to_device(positions, device_positions.device()));
  }
}

}  // namespace mnist_train::train
