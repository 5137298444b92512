#include "train/graphed_step.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/tensor.h>

#include <algorithm>
#include <utility>

namespace mnist_train::train {

namespace {

constexpr int kWarmUpSteps = 3;

}  // namespace

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
