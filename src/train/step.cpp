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

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "base/system.h"

namespace mnist_train::train {

namespace {

constexpr int kWarmUpSteps = 3;  // before a step is captured

/// Returns consecutive views of `flat` with the sizes of the buffers.
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

std::int64_t ShardBuffers::elements(const torch::nn::Module& model) {
  std::int64_t count = 0;
  for (const at::Tensor& buffer : model.buffers()) count += buffer.numel();
  return count;
}

ShardBuffers::ShardBuffers(const torch::nn::Module& model) : buffers_(model.buffers()) {
  std::stable_partition(buffers_.begin(), buffers_.end(),
                        [](const at::Tensor& buffer) { return buffer.is_floating_point(); });
  for (const at::Tensor& buffer : buffers_) {
    kept_.push_back(buffer.clone());
    if (buffer.is_floating_point()) floating_elements_ += buffer.numel();
  }
}

void ShardBuffers::begin_step() {
  const at::NoGradGuard no_grad;
  if (!buffers_.empty()) at::_foreach_copy_(kept_, buffers_);
}

void ShardBuffers::begin_shard() {
  const at::NoGradGuard no_grad;
  if (!buffers_.empty()) at::_foreach_copy_(buffers_, kept_);
}

void ShardBuffers::end_shard(const at::Tensor& changes, double fraction, bool is_first) const {
  if (buffers_.empty()) return;
  const at::NoGradGuard no_grad;
  at::_foreach_copy_(views_like(buffers_, changes), at::_foreach_sub(buffers_, kept_));
  changes.narrow(0, 0, floating_elements_).mul_(fraction);
  const std::int64_t rest = changes.numel() - floating_elements_;
  if (!is_first) changes.narrow(0, floating_elements_, rest).zero_();
}

void ShardBuffers::end_step(const at::Tensor& changes) {
  if (buffers_.empty()) return;
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
  if (options.shards) buffers_.emplace(model);
}

at::ScalarType Step::rates_type() const {
  return parameters_.values().is_cpu() ? at::kDouble : at::kFloat;
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
  if (shard_batches_ == 0) begin_shard();
  const models::BackwardRoot root = forward(batch);
  ++shard_batches_;
  shard_samples_ += batch.size();
  const bool ends_shard = shard_batches_ == batches_;
  averager_.backward(root.tensor, root.gradient,
                     /*last=*/ends_shard && shard_ + 1 == parameters_.shards());
  parameters_.collect_gradients();
  if (ends_shard) end_shard();
}

void Step::begin_shard() {
  shard_samples_ = 0;
  parameters_.begin_shard(shard_);
  if (!averager_.sends_in_backward()) parameters_.place_gradients(model_.gradient_places());
  log_.begin_shard(shard_ == 0);
  if (buffers_) buffers_->begin_shard();
}

void Step::end_shard() {
  if (buffers_) {
    buffers_->end_shard(log_.shard_of_buffers(),
                        static_cast<double>(shard_samples_) / static_cast<double>(samples_),
                        partition_.own_shards().begin == 0 && shard_ == 0);
  }
  parameters_.end_shard(shard_);
  ++shard_;
  shard_batches_ = 0;
}

void Step::finish(const at::Tensor& rates) {
  partition_.end_work(log_.others());
  averaging_seconds_ = 0;
  timed([&] {
    averager_.average();
    if (optimizer_.takes_sums()) averager_.add_up();
    if (optimizer_.clips()) averager_.all_gather();
  });
  if (buffers_) buffers_->end_step(log_.others());
  // A loss that is not finite does not reach the weights on a CPU. On a GPU the check would have to
  // wait; there the next synchronisation ends the run before anything is saved.
  bool finite = true;
  if (!parameters_.values().is_cpu() || std::isfinite(log_.last().loss)) {
    finite = optimizer_.update(averager_, rates, log_.update_check());
  }
  timed([&] { finite = averager_.end_update(finite); });
  if (!finite) log_.update_check().fill_(std::numeric_limits<float>::quiet_NaN());
}

/// Returns the root of the backward pass: the batch's part of the mean loss over the step. Adds the
/// batch's sums to the log.
models::BackwardRoot Step::forward(const loader::Batch& batch) {
  // Synchronised batch norm exchanges statistics in the forward pass, so ranks without samples must
  // run it, too.
  if (batch.size() == 0 && !model_.synchronizes_batch_norm()) return {loss_of_no_samples(), {}};
  model_.set_sample_seeds(batch.seeds);
  return models::training_loss(
      model_.forward(batch.images),
      {batch.labels, batch.other_labels, batch.weights, scaled_class_weights_},
      options_.label_smoothing, 1.0 / static_cast<double>(samples_), log_.of_samples());
}

/// Returns a zero that depends on every parameter: a rank without samples takes part in averaging.
at::Tensor Step::loss_of_no_samples() const {
  at::Tensor sum = at::zeros({}, parameters_.values().options());
  for (const at::Tensor& parameter : parameters_.parameters()) sum = sum + parameter.sum() * 0;
  return sum;
}

template <class Work>
void Step::timed(const Work& averaging) {
  const double begin_s = monotonic_seconds();
  averaging();
  averaging_seconds_ += monotonic_seconds() - begin_s;
}

GraphedStep::GraphedStep(Step& step, loader::BatchSource& images, std::int64_t samples,
                         accelerator::GraphFactory make_graph)
    : step_(step), images_(images), samples_(samples), make_graph_(std::move(make_graph)) {}

std::int64_t GraphedStep::replay(std::span<const PlannedStep> planned) {
  const PlannedStep& next = planned.front();
  if (!one_) {
    make_inputs(next);
    one_ = make_graph_();
    capture(*one_, 1);
  }
  std::vector<StepRates> rates = rates_of_many(planned);
  const bool takes_many = !rates.empty();
  if (!takes_many) {
    rates = {next.rates};
  } else if (!many_) {
    many_ = make_graph_();
    capture(*many_, kStepsAtOnce);
  }
  const auto steps = static_cast<std::int64_t>(rates.size());
  set_rates(rates);
  if (gathers_itself()) {
    set_positions(next);
    next_position_ += steps * samples_;
  }
  (takes_many ? many_ : one_)->replay();
  step_.log().append(sums_.narrow(0, 0, steps));
  return steps;
}

/// Also counts the warm-up steps, anew whenever the shards change: in these steps libraries choose
/// their kernels, which they may not do during a capture.
bool GraphedStep::can_replay(const PlannedStep& next) {
  const std::vector<std::int64_t>& sizes = next.shard_sizes;
  const bool is_full = next.samples == samples_;
  if (!is_full || std::find(sizes.begin(), sizes.end(), 0) != sizes.end()) return false;
  if (one_) return sizes == shard_sizes_;
  if (sizes != shard_sizes_) {
    shard_sizes_ = sizes;
    warm_up_steps_left_ = kWarmUpSteps;
  }
  return warm_up_steps_left_-- == 0;
}

/// Returns the rates of the steps of the larger graph. Empty if there are fewer steps, or if one is
/// not as captured: each must advance by a global batch.
std::vector<StepRates> GraphedStep::rates_of_many(std::span<const PlannedStep> planned) const {
  if (!gathers_itself() || planned.size() < static_cast<std::size_t>(kStepsAtOnce)) return {};
  std::vector<StepRates> rates;
  std::int64_t begin = planned.front().own_shard(0).begin;
  for (const PlannedStep& step : planned.first(kStepsAtOnce)) {
    if (step.samples != samples_ || step.shard_sizes != shard_sizes_ ||
        step.own_shard(0).begin != begin) {
      return {};
    }
    begin += samples_;
    rates.push_back(step.rates);
  }
  return rates;
}

void GraphedStep::make_inputs(const PlannedStep& first) {
  const at::TensorOptions options = step_.log().scalars().options();
  sums_ = at::empty({kStepsAtOnce, StepLog::kScalars}, options);
  rates_ = at::empty({kStepsAtOnce, 3}, options.dtype(step_.rates_type()));
  if (!gathers_itself()) return;
  for (std::int64_t number = 0; number < first.own.size(); ++number) {
    const std::int64_t count = first.own_shard(static_cast<std::size_t>(number)).size();
    positions_.push_back(at::empty({count + images_.samples_beyond()}, options.dtype(at::kLong)));
  }
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

void GraphedStep::set_rates(const std::vector<StepRates>& rates) {
  if (set_rates_.size() >= rates.size() &&
      std::equal(rates.begin(), rates.end(), set_rates_.begin())) {
    return;
  }
  std::vector<double> numbers;
  for (const StepRates& step : rates) {
    numbers.insert(numbers.end(), {step.learning_rate, step.average_weight, step.loss_factor});
  }
  const at::Tensor first = rates_.narrow(0, 0, static_cast<std::int64_t>(rates.size()));
  const at::Tensor rows = at::tensor(numbers, first.options().device(at::kCPU)).view({-1, 3});
  first.copy_(accelerator::to_device(rows, rates_.device()));
  if (set_rates_.size() < rates.size()) set_rates_.resize(rates.size());
  std::copy(rates.begin(), rates.end(), set_rates_.begin());
}

void GraphedStep::set_positions(const PlannedStep& next) {
  if (next_position_ == next.own_shard(0).begin) return;
  next_position_ = next.own_shard(0).begin;
  for (std::size_t number = 0; number < positions_.size(); ++number) {
    at::Tensor& on_device = positions_[number];
    const std::int64_t begin = next.own_shard(number).begin;
    const at::Tensor positions =
        at::arange(begin, begin + on_device.size(0), at::TensorOptions(at::kLong));
    on_device.copy_(accelerator::to_device(positions, on_device.device()));
  }
}

}  // namespace mnist_train::train
