#include <ATen/ops/cat.h>

#include <limits>

#include "eval/evaluator.h"

namespace mnist_train::eval {

namespace {

/// Returns which samples are right however bf16 rounds, [n] bool: those whose label's logit exceeds
/// the others by an eighth of the greatest number among them, twenty times what bf16 was seen to
/// change, and by one at least, so that their losses are small. None where one is not a number.
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

}  // namespace mnist_train::eval
