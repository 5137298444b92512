#include "eval/evaluator.h"

#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/amax.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/argmax.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/nan_to_num.h>
#include <ATen/ops/ones.h>
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
#include "models/loss.h"
#include "settings/data_options.h"

namespace mnist_train::eval {

namespace {

constexpr int kRunAheadBatches = 2;
// Images per batch and CPU thread. The activations of more images do not fit into the caches, which
// makes convolutional networks up to twice as slow.
constexpr std::int64_t kHostBatch = 128;
// Maximum number of samples whose logits are kept for recomputation.
constexpr std::int64_t kCascadedSamples = 8192;
constexpr std::int64_t kCascadedLogits = kCascadedSamples * 256;
constexpr std::int64_t kTopClasses = 5;
constexpr std::int64_t kMostScoredClasses = 100;  // with more, predictions have only the top scores

/// Returns the intersection of two ranges; its size is zero or negative if they are disjoint.
data::Range overlap(data::Range one, data::Range other) {
  return {std::max(one.begin, other.begin), std::min(one.end, other.end)};
}

/// Returns the parts of `ranges` within `whole`, relative to its beginning.
std::vector<data::Range> within(const std::vector<data::Range>& ranges, data::Range whole) {
  std::vector<data::Range> parts;
  for (const data::Range& range : ranges) {
    const data::Range part = overlap(range, whole);
    if (part.size() > 0) parts.push_back({part.begin - whole.begin, part.end - whole.begin});
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

/// Sums over the ranks, all in one tensor, so that one all-reduce is enough. Each prediction
/// belongs to one rank; the other ranks leave zeros there.
class EvaluationSums {
 public:
  EvaluationSums(const data::ImageSet& images, const EvaluationRequest& request,
                 std::int64_t shards, at::Device device)
      : classes_(images.classes),
        has_confusion_(classes_ <= settings::kMaxConfusionClasses),
        has_all_scores_(classes_ <= kMostScoredClasses),
        request_(request) {
    const std::int64_t counts = (has_confusion_ ? classes_ : 3) * classes_;
    const std::int64_t columns = 1 + (has_all_scores_ ? classes_ : 2 * kTopClasses);
    std::int64_t predictions = 0;
    for (const data::Range& wanted : request.predictions) predictions += wanted.size();
    const std::int64_t codes = request.wrong_predictions ? images.count : 0;
    const std::int64_t size = kBatchSums * shards + counts + predictions * columns + codes;
    sums_ = at::zeros({size}, at::TensorOptions(at::kDouble).device(device));
    std::int64_t taken = 0;
    const auto take = [&](std::int64_t count) {
      taken += count;
      return sums_.narrow(0, taken - count, count);
    };
    batch_sums_ = take(kBatchSums * shards).view({shards, kBatchSums});
    counts_ = take(counts);
    predictions_ = take(predictions * columns).view({predictions, columns});
    wrong_codes_ = take(codes);
    one_ = at::ones({1}, sums_.options());
    class_numbers_ = at::arange(classes_, at::TensorOptions(at::kLong).device(device));
  }

  /// Adds the samples `range` of the image set, which belong to `shard`, with `logits` [n,classes]
  /// and `labels` [n] i64.
  void add(const at::Tensor& logits, const at::Tensor& labels, std::int64_t shard,
           data::Range range) {
    const models::BatchLoss loss = models::batch_loss(logits, {labels});
    batch_sums_[shard][0].add_(loss.loss_sum);
    batch_sums_[shard][1].add_(loss.correct);
    if (classes_ > kTopClasses) batch_sums_[shard][2].add_(in_top(logits, labels));
    const at::Tensor predicted = at::argmax(logits, 1);
    count(labels, predicted);
    add_predictions(logits, predicted, range);
    if (request_.wrong_predictions) add_wrong_codes(logits, labels, predicted, range);
  }

  /// Returns all sums as one tensor, [k] f64 on the device.
  at::Tensor& tensor() { return sums_; }

  /// Reads the result after the all-reduce. `samples`: number added by all ranks together.
  Evaluation read(std::int64_t samples) const {
    const at::Tensor host = accelerator::to_host(sums_);
    const double* next = host.const_data_ptr<double>();
    const auto count = static_cast<double>(samples);
    Evaluation result;
    double top5 = 0;
    for (std::int64_t shard = 0; shard < batch_sums_.size(0); ++shard) {
      result.loss += *next++;
      result.accuracy += *next++;
      top5 += *next++;
    }
    result.loss /= count;
    result.accuracy /= count;
    if (classes_ > kTopClasses) result.top5_accuracy = top5 / count;
    result.samples = samples;
    const auto numbers = [&next](std::int64_t size) {
      const double* begin = std::exchange(next, next + size);
      return std::vector<std::int64_t>(begin, next);
    };
    result.counts = has_confusion_
                        ? count_by_class(numbers(classes_ * classes_), classes_)
                        : ClassCounts{numbers(classes_), numbers(classes_), numbers(classes_)};
    result.balanced_accuracy = balanced_accuracy(result.counts);
    for (const data::Range& wanted : request_.predictions) {
      for (std::int64_t sample = wanted.begin; sample < wanted.end; ++sample) {
        result.predictions.push_back(
            {sample, static_cast<std::int64_t>(*next), scores_at(next + 1)});
        next += predictions_.size(1);
      }
    }
    for (std::int64_t sample = 0; sample < wrong_codes_.numel(); ++sample, ++next) {
      if (*next < 2 || *next >= static_cast<double>(2 * classes_ + 2)) continue;
      const double doubled_number = 2 * std::floor(*next / 2);
      result.wrong_predictions.push_back(
          {sample, static_cast<std::int64_t>(doubled_number / 2) - 1, *next - doubled_number});
    }
    return result;
  }

 private:
  static constexpr std::int64_t kBatchSums = 3;  // loss, correct predictions, labels in top five

  /// Returns the number of samples whose label is among the five largest logits. Ties go to the
  /// lower class, as in argmax. Samples whose label's logit is NaN do not count.
  at::Tensor in_top(const at::Tensor& logits, const at::Tensor& labels) const {
    const at::Tensor column = labels.unsqueeze(1);
    const at::Tensor own = logits.gather(1, column);
    const at::Tensor not_before =
        at::where(class_numbers_.lt(column), logits.lt(own), logits.le(own));
    return not_before.sum(1).gt(classes_ - kTopClasses).sum();
  }

  /// Counts pairs of label and prediction or, without a confusion matrix, labels, predictions and
  /// correct predictions by class. Sums of ones are exact in any order. Unlike bincount, does not
  /// wait for the GPU.
  void count(const at::Tensor& labels, const at::Tensor& predicted) {
    const at::Tensor one = one_.expand_as(labels);
    if (has_confusion_) {
      counts_.index_add_(0, predicted.add(labels, classes_), one);
      return;
    }
    counts_.index_add_(0, labels, one);
    counts_.index_add_(0, predicted + classes_, one);
    counts_.index_add_(0, labels + 2 * classes_, predicted.eq(labels).to(at::kDouble));
  }

  /// Reads a row of predictions_, starting at its second column.
  std::vector<std::pair<std::int64_t, double>> scores_at(const double* row) const {
    std::vector<std::pair<std::int64_t, double>> scores;
    for (std::int64_t i = 0; i < (has_all_scores_ ? classes_ : kTopClasses); ++i) {
      const double label = has_all_scores_ ? static_cast<double>(i) : row[kTopClasses + i];
      scores.emplace_back(static_cast<std::int64_t>(label), row[i]);
    }
    return scores;
  }

  void add_predictions(const at::Tensor& logits, const at::Tensor& predicted, data::Range range) {
    std::int64_t row = 0;  // row of the first sample in `wanted`
    for (const data::Range& wanted : request_.predictions) {
      if (wanted.begin >= range.end) break;
      const data::Range part = overlap(wanted, range);
      const std::int64_t count = part.size();
      if (count > 0) {
        at::Tensor rows = predictions_.narrow(0, row + part.begin - wanted.begin, count);
        const std::int64_t from = part.begin - range.begin;
        rows.select(1, 0).copy_(predicted.narrow(0, from, count));
        const at::Tensor scores = at::softmax(logits.narrow(0, from, count).to(at::kDouble), 1);
        if (has_all_scores_) {
          rows.narrow(1, 1, classes_).copy_(scores);
        } else {
          const auto [greatest, labels] = at::topk(scores, kTopClasses, 1);
          rows.narrow(1, 1, kTopClasses).copy_(greatest);
          rows.narrow(1, 1 + kTopClasses, kTopClasses).copy_(labels);
        }
      }
      row += wanted.size();
    }
  }

  /// One number encodes a misclassified sample: twice the predicted class, counted from 1, plus the
  /// confidence in it. Correctly classified samples are 0.
  void add_wrong_codes(const at::Tensor& logits, const at::Tensor& labels,
                       const at::Tensor& predicted, data::Range range) {
    // Uses few operations, because each is a kernel launch per batch on a GPU.
    at::Tensor codes = at::amax(at::softmax(logits, 1, at::kFloat), 1);
    if (classes_ > 256) codes = codes.to(at::kDouble);  // f32 is too imprecise for both
    at::nan_to_num_(codes).add_(predicted, 2).add_(2);
    at::Tensor out = wrong_codes_.narrow(0, range.begin, range.size());
    at::mul_out(out, codes, predicted.ne(labels));
  }

  std::int64_t classes_;
  bool has_confusion_;   // instead of counts per class
  bool has_all_scores_;  // instead of the top scores and their classes
  const EvaluationRequest& request_;
  at::Tensor sums_;
  at::Tensor batch_sums_;   // [shards,kBatchSums], a view, like the next three
  at::Tensor counts_;       // [classes * classes] or [3 * classes]
  at::Tensor predictions_;  // [requested,columns]: predicted class and probabilities
  at::Tensor wrong_codes_;    // [samples] if requested, else [0]
  at::Tensor one_;            // [1] f64
  at::Tensor class_numbers_;  // [classes] i64
};

/// Returns which samples are correct despite bf16 rounding, [n] bool: those whose label's logit
/// exceeds all others by at least an eighth of the largest absolute logit, twenty times the largest
/// change observed with bf16, and by at least one, so that their losses are small. Samples with NaN
/// logits are false.
at::Tensor clearly_right(const at::Tensor& logits, const at::Tensor& labels) {
  constexpr double kPart = 0.125;
  constexpr double kLeast = 1;
  const at::Tensor column = labels.unsqueeze(1);
  const at::Tensor of_label = logits.gather(1, column).squeeze(1);
  const at::Tensor of_others =
      logits.scatter(1, column, -std::numeric_limits<double>::infinity()).amax(1);
  return of_label.sub(of_others).gt(logits.abs().amax(1).mul_(kPart).clamp_min_(kLeast));
}

/// Adds `more` rows to `rows`, which may be undefined.
void append(at::Tensor& rows, const at::Tensor& more) {
  rows = rows.defined() ? at::cat({rows, more}) : more;
}

}  // namespace

void CascadedLogits::add(const at::Tensor& images, const at::Tensor& labels,
                         const std::vector<data::Range>& wanted) {
  const at::Tensor logits = bf16_copy_.forward(images.to(at::kBFloat16)).to(at::kFloat);
  at::Tensor again = clearly_right(logits, labels).logical_not_();
  for (const data::Range& range : wanted) again.narrow(0, range.begin, range.size()).fill_(true);
  const at::Tensor rows = again.nonzero().squeeze(1);
  append(images_, images.index_select(0, rows));
  append(numbers_, rows + size());
  append(logits_, logits);
  append(labels_, labels.clone());  // the source reuses its batch
  while (images_.size(0) >= batch_size_) compute_again(batch_size_);
}

CascadedLogits::Result CascadedLogits::take() {
  if (images_.size(0) > 0) compute_again(images_.size(0));
  Result result{logits_, labels_};
  logits_ = labels_ = images_ = numbers_ = at::Tensor();
  return result;
}

/// Recomputes the first `count` pending samples with the model.
void CascadedLogits::compute_again(std::int64_t count) {
  const auto take_first = [count](at::Tensor& rows) {
    at::Tensor first = rows.narrow(0, 0, count);
    rows = rows.narrow(0, count, rows.size(0) - count);
    return first;
  };
  logits_.index_copy_(0, take_first(numbers_), model_.forward(take_first(images_)));
}

Evaluation evaluate(models::Model& model, loader::BatchSource& images, std::int64_t batch_size,
                    const comm::Communicator& communicator, at::Device device,
                    const std::function<void()>& after_batch, const EvaluationRequest& request) {
  const at::NoGradGuard no_grad;
  if (device.is_cpu()) batch_size = std::min(batch_size, kHostBatch * at::get_num_threads());
  model.eval();
  const int ranks = communicator.world_size();
  const std::int64_t shards = request.shards > 0 ? request.shards : ranks;
  const data::Range own = data::shard({0, shards}, communicator.rank(), ranks);
  EvaluationSums sums(images.images(), request, shards, device);
  const std::int64_t cascaded_samples =
      std::min(kCascadedSamples, kCascadedLogits / images.images().classes);
  std::vector<data::Range> ranges;
  std::vector<std::int64_t> shard_of_range;
  for (std::int64_t number = own.begin; number < own.end; ++number) {
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
    images.prefetch(std::span(ranges).subspan(i), loader::Order::kStored);
    const loader::Batch batch = images.gather({range, loader::Order::kStored});
    if (!cascade) {
      sums.add(model.forward(batch.images), batch.labels, shard, range);
    } else {
      cascade->add(batch.images, batch.labels, within(request.predictions, range));
      const bool ends_shard = i + 1 == ranges.size() || shard_of_range[i + 1] != shard;
      if (ends_shard || cascade->size() >= cascaded_samples) {
        const data::Range samples{range.end - cascade->size(), range.end};
        const CascadedLogits::Result result = cascade->take();
        sums.add(result.logits, result.labels, shard, samples);
      }
    }
    run_ahead_limit.step_launched();
    after_batch();
  }
  communicator.all_reduce_sum(sums.tensor());
  return sums.read(images.count());
}

}  // namespace mnist_train::eval
