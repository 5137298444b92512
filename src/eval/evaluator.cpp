#include "eval/evaluator.h"

#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/amax.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/argmax.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/eq.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/nan_to_num.h>
#include <ATen/ops/ne.h>
#include <ATen/ops/softmax.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "accelerator/device.h"
#include "models/loss.h"

namespace mnist_train::eval {

namespace {

constexpr int kRunAheadBatches = 2;
// Images of a batch for each thread of a CPU. The activations of more do not fit into its caches,
// and networks with convolutions then take up to twice as long.
constexpr std::int64_t kHostBatch = 128;
// Drafted samples whose logits are kept until those that need it are computed again.
constexpr std::int64_t kDraftedSamples = 8192;

std::int64_t count_of(const std::vector<data::Range>& ranges) {
  std::int64_t count = 0;
  for (const data::Range& range : ranges) count += range.size();
  return count;
}

/// Returns the intersection of two ranges; its size is not positive if they are disjoint.
data::Range overlap(data::Range one, data::Range other) {
  return {std::max(one.begin, other.begin), std::min(one.end, other.end)};
}

/// Returns the parts of `ranges` that are within `whole`, counted from its begin.
std::vector<data::Range> within(const std::vector<data::Range>& ranges, data::Range whole) {
  std::vector<data::Range> parts;
  for (const data::Range& range : ranges) {
    const data::Range part = overlap(range, whole);
    if (part.size() > 0) parts.push_back({part.begin - whole.begin, part.end - whole.begin});
  }
  return parts;
}

/// Sums over the ranks, all in one tensor, so that one all-reduce is enough. A prediction belongs
/// to one rank; the others leave zeros in its place.
class EvaluationSums {
 public:
  EvaluationSums(const data::ImageSet& images, const EvaluationRequest& request,
                 std::int64_t shards, at::Device device)
      : classes_(images.classes), request_(request) {
    const std::int64_t classes = classes_;
    const std::int64_t predictions = count_of(request.predictions);
    const auto extra_sums = static_cast<std::int64_t>(request.extra_sums.size());
    const std::int64_t codes = request.wrong_predictions ? images.count : 0;
    const std::int64_t size =
        2 * shards + classes * classes + predictions * (1 + classes) + extra_sums + codes;
    sums_ = at::zeros({size}, at::TensorOptions(at::kDouble).device(device));
    std::int64_t taken = 0;
    const auto take = [&](std::int64_t count) {
      taken += count;
      return sums_.narrow(0, taken - count, count);
    };
    loss_and_correct_ = take(2 * shards).view({shards, 2});
    confusion_ = take(classes * classes).view({classes, classes});
    predictions_ = take(predictions * (1 + classes)).view({predictions, 1 + classes});
    extra_sums_ = take(extra_sums);
    if (extra_sums > 0) extra_sums_.copy_(at::tensor(request.extra_sums, at::kDouble));
    wrong_codes_ = take(codes);
    class_numbers_ = at::arange(classes, at::TensorOptions(at::kLong).device(device));
  }

  /// Adds the samples `range` of the image set, which belong to `shard`, whose `logits` are
  /// [n,classes] and whose `labels` are [n] i64.
  void add(const at::Tensor& logits, const at::Tensor& labels, std::int64_t shard,
           data::Range range) {
    const models::BatchLoss loss = models::batch_loss(logits, labels);
    loss_and_correct_[shard][0].add_(loss.loss_sum);
    loss_and_correct_[shard][1].add_(loss.correct);
    const at::Tensor predicted = at::argmax(logits, 1);
    // Counting by a product of zeros and ones is exact, the same on every device, and needs no wait
    // for a GPU, unlike bincount.
    const auto one_hot = [&](const at::Tensor& numbers) {
      return numbers.unsqueeze(1).eq(class_numbers_).to(at::kFloat);  // [n,classes]
    };
    confusion_.add_(one_hot(labels).t().mm(one_hot(predicted)));
    add_predictions(logits, predicted, range);
    if (request_.wrong_predictions) add_wrong_codes(logits, labels, predicted, range);
  }

  /// Returns all sums as one tensor, [k] f64 on the device.
  at::Tensor& tensor() { return sums_; }

  /// Reads the result after the all-reduce. All ranks together have added `samples`.
  Evaluation read(std::int64_t samples) const {
    const at::Tensor host = accelerator::to_host(sums_);
    const double* next = host.const_data_ptr<double>();
    const auto count = static_cast<double>(samples);
    Evaluation result;
    for (std::int64_t shard = 0; shard < loss_and_correct_.size(0); ++shard) {
      result.loss += *next++;
      result.accuracy += *next++;
    }
    result.loss /= count;
    result.accuracy /= count;
    result.samples = samples;
    for (std::int64_t i = 0; i < classes_ * classes_; ++i) {
      result.confusion.push_back(static_cast<std::int64_t>(*next++));
    }
    for (const data::Range& wanted : request_.predictions) {
      for (std::int64_t sample = wanted.begin; sample < wanted.end; ++sample) {
        SamplePrediction prediction{sample, static_cast<std::int64_t>(*next++), {}};
        prediction.scores.assign(next, next + classes_);
        next += classes_;
        result.predictions.push_back(std::move(prediction));
      }
    }
    result.extra_sums.assign(next, next + request_.extra_sums.size());
    next += request_.extra_sums.size();
    for (std::int64_t sample = 0; sample < wrong_codes_.numel(); ++sample, ++next) {
      if (*next < 2 || *next >= static_cast<double>(2 * classes_ + 2)) continue;
      const double doubled_number = 2 * std::floor(*next / 2);
      result.wrong_predictions.push_back(
          {sample, static_cast<std::int64_t>(doubled_number / 2) - 1, *next - doubled_number});
    }
    return result;
  }

 private:
  void add_predictions(const at::Tensor& logits, const at::Tensor& predicted, data::Range range) {
    std::int64_t row = 0;  // the row of the wanted range's first sample
    for (const data::Range& wanted : request_.predictions) {
      if (wanted.begin >= range.end) break;
      const data::Range part = overlap(wanted, range);
      const std::int64_t count = part.size();
      if (count > 0) {
        at::Tensor rows = predictions_.narrow(0, row + part.begin - wanted.begin, count);
        const std::int64_t from = part.begin - range.begin;
        rows.select(1, 0).copy_(predicted.narrow(0, from, count));
        rows.narrow(1, 1, classes_)
            .copy_(at::softmax(logits.narrow(0, from, count).to(at::kDouble), 1));
      }
      row += wanted.size();
    }
  }

  /// One number encodes a wrong prediction: twice the predicted class, counted from 1, plus the
  /// confidence in it. Right ones stay 0.
  void add_wrong_codes(const at::Tensor& logits, const at::Tensor& labels,
                       const at::Tensor& predicted, data::Range range) {
    // Few operations, because a GPU launches each one for every batch.
    at::Tensor codes = at::amax(at::softmax(logits, 1, at::kFloat), 1);
    at::nan_to_num_(codes).add_(predicted, 2).add_(2);
    at::Tensor places = wrong_codes_.narrow(0, range.begin, range.size());
    at::mul_out(places, codes, predicted.ne(labels));
  }

  std::int64_t classes_;
  const EvaluationRequest& request_;
  at::Tensor sums_;
  at::Tensor loss_and_correct_;  // [shards,2], a view, as those below
  at::Tensor confusion_;         // [classes,classes]
  at::Tensor predictions_;       // [wanted,1 + classes]: predicted class and probabilities
  at::Tensor extra_sums_;
  at::Tensor wrong_codes_;    // [samples] if wanted, else [0]
  at::Tensor class_numbers_;  // [classes] i64
};

/// Returns which samples are right however bf16 rounds, [n] bool: those whose label's logit exceeds
/// the others by an eighth of the greatest number among them, twenty times what bf16 was seen to
/// change, and by one at least, so that their losses are small. None if one is not a number.
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

DraftedLogits::DraftedLogits(models::Model& model, models::Model& draft, std::int64_t batch_size)
    : model_(model), draft_(draft), batch_size_(batch_size) {}

void DraftedLogits::add(const at::Tensor& images, const at::Tensor& labels,
                        const std::vector<data::Range>& wanted) {
  const at::Tensor logits = draft_.forward(images.to(at::kBFloat16)).to(at::kFloat);
  at::Tensor again = clearly_right(logits, labels).logical_not_();
  for (const data::Range& range : wanted) again.narrow(0, range.begin, range.size()).fill_(true);
  const at::Tensor rows = again.nonzero().squeeze(1);
  append(images_, images.index_select(0, rows));
  append(numbers_, rows + size());
  append(logits_, logits);
  append(labels_, labels.clone());  // the source uses its batch again
  while (images_.size(0) >= batch_size_) compute_again(batch_size_);
}

DraftedLogits::Result DraftedLogits::take() {
  if (images_.size(0) > 0) compute_again(images_.size(0));
  Result result{logits_, labels_};
  logits_ = labels_ = images_ = numbers_ = at::Tensor();
  return result;
}

/// Lets the model compute the first `count` samples of those that it has to.
void DraftedLogits::compute_again(std::int64_t count) {
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
  std::vector<data::Range> ranges;
  std::vector<std::int64_t> shard_of_range;
  for (std::int64_t number = own.begin; number < own.end; ++number) {
    const data::Range shard = data::shard({0, images.count()}, number, shards);
    for (std::int64_t begin = shard.begin; begin < shard.end; begin += batch_size) {
      ranges.push_back({begin, std::min(begin + batch_size, shard.end)});
      shard_of_range.push_back(number);
    }
  }
  std::optional<DraftedLogits> drafted;
  if (request.draft != nullptr && device.is_cpu()) {
    request.draft->eval();
    drafted.emplace(model, *request.draft, batch_size);
  }
  accelerator::RunAheadLimit run_ahead_limit(device, kRunAheadBatches);
  for (std::size_t i = 0; i < ranges.size(); ++i) {
    const data::Range& range = ranges[i];
    const std::int64_t shard = shard_of_range[i];
    images.prefetch(std::span(ranges).subspan(i), loader::Order::kStored);
    const loader::Batch batch = images.gather({range, loader::Order::kStored});
    if (!drafted) {
      sums.add(model.forward(batch.images), batch.labels, shard, range);
    } else {
      drafted->add(batch.images, batch.labels, within(request.predictions, range));
      const bool ends_shard = i + 1 == ranges.size() || shard_of_range[i + 1] != shard;
      if (ends_shard || drafted->size() >= kDraftedSamples) {
        const data::Range samples{range.end - drafted->size(), range.end};
        const DraftedLogits::Result result = drafted->take();
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
