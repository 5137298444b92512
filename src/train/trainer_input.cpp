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

/// Returns the step of this epoch that comes after `number` others; without samples behind its end.
PlannedStep Trainer::plan(std::int64_t number) {
  const std::int64_t begin = progress_.samples_into_epoch + number * samples_per_step();
  const std::int64_t end = std::min(begin + samples_per_step(), images_.count());
  PlannedStep planned;
  planned.shard_sizes.resize(static_cast<std::size_t>(partition_->shards()));
  const std::int64_t step = progress_.step + number;
  planned.rates.learning_rate = schedule_.learning_rate(step, progress_.plateau);
  if (options_.ema) planned.rates.average_weight = average_weight(options_.ema->decay, step + 1);
  std::vector<std::vector<data::Range>> shards;  // by batch
  for (std::int64_t next = begin; next < end; next += global_batch_size_) {
    shards.push_back(shards_of(next));
    for (std::size_t i = 0; i < shards.back().size(); ++i) {
      planned.shard_sizes[i] += shards.back()[i].size();
    }
  }
  const data::Range own = partition_->own_shards();
  if (!shards.empty()) {
    planned.shards.assign(shards.front().begin() + own.begin, shards.front().begin() + own.end);
  }
  planned.batches.count = static_cast<std::int64_t>(shards.size());
  planned.batches.samples = std::max<std::int64_t>(0, end - begin);
  planned.batches.shard = [this, begin, own, shards = std::move(shards)](std::int64_t batch,
                                                                         std::size_t shard) {
    if (images_.images().encoded) prefetch(begin, batch, shard);
    const std::size_t number_of_all = static_cast<std::size_t>(own.begin) + shard;
    if (batch == 0 && model_->is_external()) {
      // So there is no state of generators to save, and a run resumes exactly.
      torch::manual_seed(data::generator_seed(options_.seed, progress_.step,
                                              static_cast<std::int64_t>(number_of_all)));
    }
    const std::vector<data::Range>& all = shards[static_cast<std::size_t>(batch)];
    return gather(all[number_of_all], all[(number_of_all + 1) % all.size()]);
  };
  return planned;
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

/// Returns a shard of a global batch, behind which comes `next`.
loader::Batch Trainer::gather(data::Range range, data::Range next) {
  const double begin_s = monotonic_seconds();
  loader::Batch batch = images_.gather(range, next);
  input_seconds_ += monotonic_seconds() - begin_s;
  return batch;
}

/// Announces what this rank gathers from here on, so that it is decoded while earlier samples are
/// computed: of the step that begins at `begin` from its shard `number` of `batch` on, and of later
/// steps.
void Trainer::prefetch(std::int64_t begin, std::int64_t batch, std::size_t number) {
  const double begin_s = monotonic_seconds();
  const data::Range own = partition_->own_shards();
  const auto end_of = [this](std::int64_t step) {
    return std::min(step + samples_per_step(), images_.count());
  };
  const std::int64_t batches = data::steps_per_epoch(end_of(begin) - begin, global_batch_size_);
  const std::size_t done =
      number * static_cast<std::size_t>(batches) + static_cast<std::size_t>(batch);
  std::vector<data::Range> coming;
  for (; coming.size() < done + loader::BatchSource::kBatchesAhead && begin < images_.count();
       begin = end_of(begin)) {
    for (std::int64_t shard = own.begin; shard < own.end; ++shard) {
      for (std::int64_t next = begin; next < end_of(begin); next += global_batch_size_) {
        coming.push_back(shards_of(next)[static_cast<std::size_t>(shard)]);
      }
    }
  }
  images_.prefetch(std::span(coming).subspan(done));
  input_seconds_ += monotonic_seconds() - begin_s;
}

}  // namespace mnist_train::train
