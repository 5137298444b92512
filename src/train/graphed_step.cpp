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

const char* obstacle_to_capture(const settings::TrainOptions& options, const TrainerSetup& setup,
                                const BatchPartition& partition, const models::Model& model) {
  if (model.is_external()) return "the network's code is not this program's own";
  if (!setup.make_graph) return "the processes compute on CPUs, or on several kinds of device";
  if (options.gradient_accumulation_steps > 1) return "gradient_accumulation_steps is above 1";
  if (partition.statistics() > 0) return "data.split is throughput";
  return nullptr;
}

void take_eagerly(Step& step, const PlannedStep& planned, StepHistory& history) {
  step.set_rates(planned.rates);
  step.run(planned.batches);
  history.append(step.stats().scalars().unsqueeze(0));
}

GraphedStep::GraphedStep(Step& step, loader::BatchSource& images, std::int64_t samples,
                         accelerator::GraphFactory make_graph)
    : step_(step), images_(images), samples_(samples), make_graph_(std::move(make_graph)) {}

std::int64_t GraphedStep::run(const Plan& plan, std::int64_t most, StepHistory& history) {
  const PlannedStep next = plan(0);
  if (!can_replay(next)) {
    take_eagerly(step_, next, history);
    return 1;
  }
  if (!one_) {
    make_inputs(next);
    one_ = make_graph_();
    capture(*one_, 1);
  }
  std::vector<StepRates> rates;
  if (most >= kStepsAtOnce) rates = rates_of_many(next, plan);
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
    set_positions(next.shards);
    next_position_ += steps * samples_;
  } else {
    load(next);
  }
  (takes_many ? many_ : one_)->replay();
  history.append(sums_.narrow(0, 0, steps));
  return steps;
}

/// Counts the warm-up steps, too, and starts again when the shards change: in these steps libraries
/// choose their kernels, which they may not do during a capture.
bool GraphedStep::can_replay(const PlannedStep& next) {
  const std::vector<std::int64_t>& sizes = next.shard_sizes;
  const bool is_full = next.batches.samples == samples_;
  if (!is_full || std::find(sizes.begin(), sizes.end(), 0) != sizes.end()) return false;
  if (one_) return sizes == shard_sizes_;
  if (sizes != shard_sizes_) {
    shard_sizes_ = sizes;
    warm_up_steps_left_ = kWarmUpSteps;
  }
  return warm_up_steps_left_-- == 0;
}

/// Returns the rates of the steps of the larger graph; nothing where one of them is not as
/// it was captured: steps move on by a global batch each.
std::vector<StepRates> GraphedStep::rates_of_many(const PlannedStep& next, const Plan& plan) const {
  if (!gathers_itself()) return {};
  std::vector<StepRates> rates{next.rates};
  for (std::int64_t i = 1; i < kStepsAtOnce; ++i) {
    const PlannedStep later = plan(i);
    if (later.batches.samples != samples_ || later.shard_sizes != shard_sizes_ ||
        later.shards.front().begin != next.shards.front().begin + i * samples_) {
      return {};
    }
    rates.push_back(later.rates);
  }
  return rates;
}

void GraphedStep::make_inputs(const PlannedStep& first) {
  const at::TensorOptions options = step_.stats().scalars().options();
  sums_ = at::empty({kStepsAtOnce, StepStats::kScalars}, options);
  rates_ = at::empty({kStepsAtOnce, 2}, options.dtype(step_.rates_type()));
  for (std::size_t number = 0; number < first.shards.size(); ++number) {
    if (images_.can_gather_at()) {
      const std::int64_t count = first.shards[number].size() + images_.samples_beyond();
      positions_.push_back(at::empty({count}, options.dtype(at::kLong)));
      continue;
    }
    inputs_.push_back(first.batches.shard(0, number));
    for (at::Tensor* tensor : inputs_.back().tensors()) {
      if (tensor->defined()) *tensor = at::empty_like(*tensor);
    }
  }
}

void GraphedStep::capture(accelerator::DeviceGraph& graph, std::int64_t steps) {
  graph.capture([this, steps] {
    for (std::int64_t i = 0; i < steps; ++i) {
      const auto shard = [this](std::int64_t, std::size_t number) {
        return gathers_itself() ? images_.gather_at(positions_[number], samples_) : inputs_[number];
      };
      step_.run({1, samples_, shard}, rates_.select(0, i));
      sums_.select(0, i).copy_(step_.stats().scalars());
    }
  });
}

void GraphedStep::set_rates(const std::vector<StepRates>& rates) {
  if (set_rates_.size() >= rates.size() &&
      std::equal(rates.begin(), rates.end(), set_rates_.begin())) {
    return;
  }
  std::vector<double> numbers;
  for (const StepRates& step : rates) {
    numbers.insert(numbers.end(), {step.learning_rate, step.average_weight});
  }
  const at::Tensor first = rates_.narrow(0, 0, static_cast<std::int64_t>(rates.size()));
  const at::Tensor rows = at::tensor(numbers, first.options().device(at::kCPU)).view({-1, 2});
  first.copy_(accelerator::to_device(rows, rates_.device()));
  if (set_rates_.size() < rates.size()) set_rates_.resize(rates.size());
  std::copy(rates.begin(), rates.end(), set_rates_.begin());
}

void GraphedStep::set_positions(const std::vector<data::Range>& shards) {
  if (next_position_ == shards.front().begin) return;
  next_position_ = shards.front().begin;
  for (std::size_t number = 0; number < positions_.size(); ++number) {
    at::Tensor& on_device = positions_[number];
    const std::int64_t begin = shards[number].begin;
    const at::Tensor positions =
        at::arange(begin, begin + on_device.size(0), at::TensorOptions(at::kLong));
    on_device.copy_(accelerator::to_device(positions, on_device.device()));
  }
}

void GraphedStep::load(const PlannedStep& next) {
  for (std::size_t number = 0; number < inputs_.size(); ++number) {
    loader::Batch batch = next.batches.shard(0, number);
    const auto from = batch.tensors();
    const auto to = inputs_[number].tensors();
    for (std::size_t i = 0; i < to.size(); ++i) {
      if (to[i]->defined()) to[i]->copy_(*from[i]);
    }
  }
}

}  // namespace mnist_train::train
