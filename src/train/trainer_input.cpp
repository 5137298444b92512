// What a trainer takes its steps on: batches, shards and their samples.

#include <torch/utils.h>

#include <algorithm>
#include <span>
#include <utility>

#include "base/system.h"
#include "data/epoch_draws.h"
#include "data/sampler.h"
#include "train/trainer.h"

namespace mnist_train::train {

/// Returns the step of this epoch that comes after `number` others; past its end one without
/// samples.
PlannedStep Trainer::plan(std::int64_t number) const {
  const std::int64_t begin = progress_.samples_into_epoch + number * samples_per_step();
  const std::int64_t end = std::min(begin + samples_per_step(), images_.count());
  PlannedStep planned;
  planned.samples = std::max<std::int64_t>(0, end - begin);
  planned.shard_sizes.resize(static_cast<std::size_t>(partition_->shards()));
  planned.own = partition_->own_shards();
  const std::int64_t step = progress_.step + number;
  planned.rates.learning_rate = schedule_.learning_rate(step, progress_.plateau);
  if (options_.ema) planned.rates.average_weight = average_weight(options_.ema->decay, step + 1);
  for (std::int64_t next = begin; next < end; next += global_batch_size_) {
    planned.batches.push_back(shards_of(next));
    for (std::size_t i = 0; i < planned.shard_sizes.size(); ++i) {
      planned.shard_sizes[i] += planned.batches.back()[i].size();
    }
  }
  return planned;
}

void Trainer::take_eagerly(const PlannedStep& next) {
  rates_.select(0, 0).fill_(next.rates.learning_rate);
  if (average_) rates_.select(0, 1).fill_(next.rates.average_weight);
  step_.begin(next.samples, static_cast<std::int64_t>(next.batches.size()));
  for (std::size_t shard = 0; shard < static_cast<std::size_t>(next.own.size()); ++shard) {
    for (std::size_t batch = 0; batch < next.batches.size(); ++batch) {
      step_.add(gather(next, batch, shard));
    }
  }
  step_.finish(rates_);
  log_.append(log_.scalars().unsqueeze(0));
  partition_->update(log_.others(), next.shard_sizes);
}

/// Takes the next step, or several, by a graph. Returns how many.
std::int64_t Trainer::replay(const PlannedStep& next, std::int64_t most) {
  most = std::min({most, log_.steps_left(), GraphedStep::kStepsAtOnce});
  if (options_.max_steps) most = std::min(most, *options_.max_steps - progress_.step);
  std::vector<PlannedStep> planned{next};
  if (graphed_step_->gathers_itself()) {
    if (most < GraphedStep::kStepsAtOnce) most = 1;
    for (std::int64_t number = 1; number < most; ++number) planned.push_back(plan(number));
  } else {
    for (std::size_t shard = 0; shard < static_cast<std::size_t>(next.own.size()); ++shard) {
      graphed_step_->load(shard, gather(next, 0, shard));
    }
  }
  return graphed_step_->replay(planned);
}

/// Returns the shards of the global batch that begins at `begin`.
std::vector<data::Range> Trainer::shards_of(std::int64_t begin) const {
  const data::Range global{begin, std::min(begin + global_batch_size_, images_.count())};
  std::vector<data::Range> shards;
  for (std::int64_t number = 0; number < partition_->shards(); ++number) {
    shards.push_back(partition_->shard(global, number));
  }
  return shards;
}

/// Returns this rank's shard number `shard` of a batch of the next step. It is valid until the next
/// one is gathered.
loader::Batch Trainer::gather(const PlannedStep& step, std::size_t batch, std::size_t shard) {
  const double begin_s = monotonic_seconds();
  const std::size_t number = static_cast<std::size_t>(step.own.begin) + shard;
  if (images_.images().encoded) prefetch(batch, shard);
  if (batch == 0 && model_->is_external()) {
    // So there is no state of generators to save, and a run resumes exactly.
    torch::manual_seed(
        data::generator_seed(options_.seed, progress_.step, static_cast<std::int64_t>(number)));
  }
  const std::vector<data::Range>& all = step.batches[batch];
  loader::Batch gathered = images_.gather(all[number], all[(number + 1) % all.size()]);
  input_seconds_ += monotonic_seconds() - begin_s;
  return gathered;
}

/// Announces what this rank gathers from here on, so that it is decoded while earlier samples are
/// computed: in the next step from shard number `shard` of `batch` on, and in later steps.
void Trainer::prefetch(std::size_t batch, std::size_t shard) {
  std::int64_t begin = progress_.samples_into_epoch;
  const data::Range own = partition_->own_shards();
  const auto end_of = [this](std::int64_t step) {
    return std::min(step + samples_per_step(), images_.count());
  };
  const std::int64_t batches = data::steps_per_epoch(end_of(begin) - begin, global_batch_size_);
  const std::size_t done = shard * static_cast<std::size_t>(batches) + batch;
  std::vector<data::Range> coming;
  for (; coming.size() < done + loader::BatchSource::kBatchesAhead && begin < images_.count();
       begin = end_of(begin)) {
    for (std::int64_t number = own.begin; number < own.end; ++number) {
      for (std::int64_t next = begin; next < end_of(begin); next += global_batch_size_) {
        coming.push_back(shards_of(next)[static_cast<std::size_t>(number)]);
      }
    }
  }
  images_.prefetch(std::span(coming).subspan(done));
}

}  // namespace mnist_train::train
