#include "eval/evaluator.h"

#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/amax.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/argmax.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/softmax.h>
#include <ATen/ops/topk.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <span>

#include "accelerator/device.h"
#include "settings/data_options.h"

namespace mnist_train::eval {

namespace {

constexpr int kRunAheadBatches = 2;
// Images per batch and CPU thread. With more, the activations would not fit into the caches, and
// convolutional networks would be up to twice as slow.
constexpr std::int64_t kHostBatch = 128;
// A cascade is emptied at the end of a shard, and once it contains this many samples or logits.
constexpr std::int64_t kCascadedSamples = 8192;
constexpr std::int64_t kCascadedLogits = kCascadedSamples * 256;
constexpr std::int64_t kTopClasses = 5;
constexpr std::int64_t kMaxScoredClasses = 100;  // with more, predictions have only the top scores

/// Returns the intersection of two ranges; its size is zero or negative if they are disjoint.
data::Range overlap(data::Range one, data::Range other) {
  return {std::max(one.begin, other.begin), std::min(one.end, other.end)};
}

/// Returns the parts of `ranges` within `outer`, relative to its beginning.
std::vector<data::Range> within(const std::vector<data::Range>& ranges, data::Range outer) {
  std::vector<data::Range> parts;
  for (const data::Range& range : ranges) {
    const data::Range part = overlap(range, outer);
    if (part.size() > 0) parts.push_back({part.begin - outer.begin, part.end - outer.begin});
  }
  return parts;
}

double balanced_accuracy(const ClassCounts& counts) {
  double sum = 0;
  double classes = 0;
  for (std::int64_t label = 0; label < counts.classes(); ++label) {
    if (counts.of(label).samples == 0) continue;
    sum += counts.of(label).recall();
    ++classes;
  }
  return sum / classes;
}

/// The results of all ranks in one tensor, so that one all-reduce is enough. Each sample belongs to
/// one rank; the other ranks leave its entries zero.
class EvaluationSums {
 public:
  EvaluationSums(const data::ImageSet& images, const EvaluationRequest& request,
                 std::int64_t shards, at::Device device)
      : classes_(images.classes),
        labels_(images.labels),
        has_all_scores_(classes_ <= kMaxScoredClasses),
        request_(request) {
    const std::int64_t columns = has_all_scores_ ? classes_ : 2 * kTopClasses;
    std::int64_t requested = 0;
    for (const data::Range& wanted : request.predictions) requested += wanted.size();
    const std::int64_t size = 2 * shards + 2 * images.count + columns * requested;
    sums_ = at::zeros({size}, at::TensorOptions(at::kDouble).device(device));
    std::int64_t offset = 0;
    const auto take = [&](std::int64_t rows, std::int64_t row_size) {
      offset += rows * row_size;
      return sums_.narrow(0, offset - rows * row_size, rows * row_size).view({rows, row_size});
    };
    shard_sums_ = take(shards, 2);
    predictions_ = take(images.count, 2);
    scores_ = take(requested, columns);
    class_numbers_ = at::arange(classes_, at::TensorOptions(at::kLong).device(device));
  }

  /// Adds the samples in `range`, which belong to `shard`: their `logits` [n,classes] and `labels`
  /// [n] i64. Uses few operations, because each is a kernel launch on a GPU.
  void add(const at::Tensor& logits, const at::Tensor& labels, std::int64_t shard,
           data::Range range) {
    const at::Tensor scores = logits.to(at::kFloat);
    const at::Tensor loss = at::cross_entropy_loss(scores, labels, {}, at::Reduction::Sum);
    shard_sums_[shard][0].add_(loss);
    if (classes_ > kTopClasses) shard_sums_[shard][1].add_(count_in_top(logits, labels));
    const at::Tensor rows = predictions_.narrow(0, range.begin, range.size());
    rows.select(1, 0).copy_(at::argmax(logits, 1));
    rows.select(1, 1).copy_(at::amax(at::softmax(scores, 1), 1));
    add_scores(logits, range);
  }

  /// Sums over the ranks and returns the result. Collective.
  Evaluation read(const comm::Communicator& communicator) {
    communicator.all_reduce_sum(sums_);
    const at::Tensor host = accelerator::to_host(sums_);
    const double* next = host.const_data_ptr<double>();
    Evaluation result;
    double top5 = 0;
    for (std::int64_t shard = 0; shard < shard_sums_.size(0); ++shard) {
      result.loss += *next++;
      top5 += *next++;
    }
    result.samples = predictions_.size(0);
    const auto samples = static_cast<double>(result.samples);
    result.loss /= samples;
    if (classes_ > kTopClasses) result.top5_accuracy = top5 / samples;
    const double* guesses = std::exchange(next, next + predictions_.numel());
    count(guesses, result);
    for (const data::Range& wanted : request_.predictions) {
      for (std::int64_t sample = wanted.begin; sample < wanted.end; ++sample) {
        const auto predicted = static_cast<std::int64_t>(guesses[2 * sample]);
        result.predictions.push_back({sample, predicted, scores_at(next)});
        next += scores_.size(1);
      }
    }
    return result;
  }

 private:
  /// Returns the number of samples whose label is among the five largest logits. Ties go to the
  /// lower class, as in argmax. Samples whose label's logit is NaN do not count.
  at::Tensor count_in_top(const at::Tensor& logits, const at::Tensor& labels) const {
    const at::Tensor column = labels.unsqueeze(1);
    const at::Tensor label_logits = logits.gather(1, column);
    const at::Tensor ranks_lower =
        at::where(class_numbers_.lt(column), logits.lt(label_logits), logits.le(label_logits));
    return ranks_lower.sum(1).gt(classes_ - kTopClasses).sum();
  }

  /// Adds the per-class counts, the accuracies and the wrong predictions. `guess`: points to the
  /// first row of predictions_ in host memory.
  void count(const double* guess, Evaluation& result) const {
    const auto classes = static_cast<std::size_t>(classes_);
    ClassCounts& counts = result.counts;
    for (auto* list : {&counts.samples, &counts.predicted, &counts.correct}) list->resize(classes);
    if (classes_ <= settings::kMaxConfusionClasses) counts.confusion.resize(classes * classes);
    for (std::int64_t sample = 0; sample < result.samples; ++sample, guess += 2) {
      const std::size_t label = labels_[static_cast<std::size_t>(sample)];
      ++counts.samples[label];
      // An external network may return more logits than in the check that loaded it.
      if (!(guess[0] >= 0 && guess[0] < static_cast<double>(classes_))) continue;
      const auto predicted = static_cast<std::size_t>(guess[0]);
      ++counts.predicted[predicted];
      if (!counts.confusion.empty()) ++counts.confusion[label * classes + predicted];
      if (predicted == label) {
        ++counts.correct[label];
      } else {
        const auto number = static_cast<std::int64_t>(predicted);
        const double confidence = std::isnan(guess[1]) ? 0 : guess[1];
        result.wrong_predictions.push_back({sample, number, {{number, confidence}}});
      }
    }
    result.accuracy = fraction_of(counts.total_correct(), result.samples);
    result.balanced_accuracy = balanced_accuracy(counts);
  }

  /// Reads a row of scores_.
  std::vector<std::pair<std::int64_t, double>> scores_at(const double* row) const {
    std::vector<std::pair<std::int64_t, double>> scores;
    for (std::int64_t i = 0; i < (has_all_scores_ ? classes_ : kTopClasses); ++i) {
      const double label = has_all_scores_ ? static_cast<double>(i) : row[kTopClasses + i];
      scores.emplace_back(static_cast<std::int64_t>(label), row[i]);
    }
    return scores;
  }

  void add_scores(const at::Tensor& logits, data::Range range) {
    std::int64_t row = 0;  // row of the first sample in `wanted`
    for (const data::Range& wanted : request_.predictions) {
      if (wanted.begin >= range.end) break;
      const data::Range part = overlap(wanted, range);
      const std::int64_t count = part.size();
      if (count > 0) {
        const at::Tensor rows = scores_.narrow(0, row + part.begin - wanted.begin, count);
        const at::Tensor part_logits = logits.narrow(0, part.begin - range.begin, count);
        const at::Tensor scores = at::softmax(part_logits.to(at::kDouble), 1);
        if (has_all_scores_) {
          rows.copy_(scores);
        } else {
          const auto [top_scores, labels] = at::topk(scores, kTopClasses, 1);
          rows.narrow(1, 0, kTopClasses).copy_(top_scores);
          rows.narrow(1, kTopClasses, kTopClasses).copy_(labels);
        }
      }
      row += wanted.size();
    }
  }

  std::int64_t classes_;
  std::span<const std::uint16_t> labels_;  // [samples]
  bool has_all_scores_;                    // else only the top scores and their classes
  const EvaluationRequest& request_;
  at::Tensor sums_;
  at::Tensor shard_sums_;     // [shards,2]: loss, labels in the top five; a view, like the next two
  at::Tensor predictions_;    // [samples,2]: predicted class and its probability
  at::Tensor scores_;         // [requested,columns]
  at::Tensor class_numbers_;  // [classes] i64
};

/// Returns which samples are correct despite bf16 rounding, [n] bool: their label's logit exceeds
/// all others by more than an eighth of the largest absolute logit (twenty times the largest change
/// observed with bf16), and by more than one, so that losses are small. False for NaN logits.
at::Tensor clearly_right(const at::Tensor& logits, const at::Tensor& labels) {
  constexpr double kMargin = 0.125;
  constexpr double kMinMargin = 1;
  const at::Tensor column = labels.unsqueeze(1);
  const at::Tensor label_logits = logits.gather(1, column).squeeze(1);
  const at::Tensor max_others =
      logits.scatter(1, column, -std::numeric_limits<double>::infinity()).amax(1);
  return label_logits.sub(max_others).gt(logits.abs().amax(1).mul_(kMargin).clamp_min_(kMinMargin));
}

/// Adds `more` rows to `rows`, which may be undefined.
void append(at::Tensor& rows, const at::Tensor& more) {
  rows = rows.defined() ? at::cat({rows, more}) : more;
}

}  // namespace

void CascadedLogits::add(const at::Tensor& images, const at::Tensor& labels,
                         const std::vector<data::Range>& wanted) {
  const at::Tensor logits = bf16_copy_.forward(images.to(at::kBFloat16)).to(at::kFloat);
  at::Tensor redo = clearly_right(logits, labels).logical_not_();
  for (const data::Range& range : wanted) redo.narrow(0, range.begin, range.size()).fill_(true);
  const at::Tensor rows = redo.nonzero().squeeze(1);
  append(images_, images.index_select(0, rows));
  append(numbers_, rows + size());
  append(logits_, logits);
  append(labels_, labels.clone());  // the source reuses its memory
  while (images_.size(0) >= batch_size_) recompute(batch_size_);
}

std::pair<at::Tensor, at::Tensor> CascadedLogits::take() {
  if (images_.size(0) > 0) recompute(images_.size(0));
  std::pair result{logits_, labels_};
  logits_ = labels_ = images_ = numbers_ = at::Tensor();
  return result;
}

/// Recomputes the first `count` pending samples with the model.
void CascadedLogits::recompute(std::int64_t count) {
  const auto take_first = [count](at::Tensor& rows) {
    at::Tensor first = rows.narrow(0, 0, count);
    rows = rows.narrow(0, count, rows.size(0) - count);
    return first;
  };
  logits_.index_copy_(0, take_first(numbers_), model_.forward(take_first(images_)));
}

Evaluation evaluate(models::Model& model, loader::BatchSource& images, std::int64_t batch_size,
                    const comm::Communicator& communicator, at::Device device,
                    const std::function<void()>& before_batch, const EvaluationRequest& request) {
  const at::NoGradGuard no_grad;
  if (device.is_cpu()) batch_size = std::min(batch_size, kHostBatch * at::get_num_threads());
  model.eval();
  const int ranks = communicator.world_size();
  const std::int64_t shards = request.shards > 0 ? request.shards : ranks;
  const data::Range local_shards = data::shard({0, shards}, communicator.rank(), ranks);
  EvaluationSums sums(images.images(), request, shards, device);
  const std::int64_t cascaded_samples =
      std::min(kCascadedSamples, kCascadedLogits / images.images().classes);
  std::vector<data::Range> ranges;
  std::vector<std::int64_t> shard_of_range;
  for (std::int64_t number = local_shards.begin; number < local_shards.end; ++number) {
    const data::Range shard = data::shard({0, images.count()}, number, shards);
    for (std::int64_t begin = shard.begin; begin < shard.end; begin += batch_size) {
      ranges.push_back({begin, std::min(begin + batch_size, shard.end)});
      shard_of_range.push_back(number);
    }
  }
  std::optional<CascadedLogits> cascade;
  if (request.bf16_copy != nullptr && device.is_cpu()) {
    request.bf16_copy->eval();
    cascade.emplace(model, *request.bf16_copy, batch_size);
  }
  accelerator::RunAheadLimit run_ahead_limit(device, kRunAheadBatches);
  for (std::size_t i = 0; i < ranges.size(); ++i) {
    const data::Range& range = ranges[i];
    const std::int64_t shard = shard_of_range[i];
    before_batch();
    images.prefetch(std::span(ranges).subspan(i), loader::Order::kStored);
    const loader::Batch batch = images.gather({range, loader::Order::kStored});
    if (!cascade) {
      sums.add(model.forward(batch.images), batch.labels, shard, range);
    } else {
      cascade->add(batch.images, batch.labels, within(request.predictions, range));
      const bool ends_shard = i + 1 == ranges.size() || shard_of_range[i + 1] != shard;
      if (ends_shard || cascade->size() >= cascaded_samples) {
        const data::Range samples{range.end - cascade->size(), range.end};
        const auto [logits, labels] = cascade->take();
        sums.add(logits, labels, shard, samples);
      }
    }
    run_ahead_limit.step_launched();
  }
  return sums.read(communicator);
}

}  // namespace mnist_train::eval
