#include "train/step.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/zeros.h>

#include <cmath>
#include <string>
#include <utility>

#include "base/error.h"
#include "base/system.h"
#include "models/loss.h"

namespace mnist_train::train {

namespace {

enum Rider : std::int64_t { kLoss, kCorrect, kSamples, kStop };

StepSums to_sums(const at::Tensor& riders) {
  const at::Tensor host = riders.to(at::kCPU, at::kDouble);
  const auto* values = host.const_data_ptr<double>();
  return {values[kLoss], values[kCorrect], values[kSamples], values[kStop]};
}

}  // namespace

Step::Step(const settings::TrainOptions& options, std::shared_ptr<models::Model> model,
           const FlatParameters& parameters, comm::GradientAverager& averager, Optimizer& optimizer)
    : options_(options),
      model_(std::move(model)),
      parameters_(parameters),
      averager_(averager),
      optimizer_(optimizer),
      totals_(at::zeros({kRiders}, parameters.riders().options().dtype(at::kDouble))),
      learning_rate_(
          at::zeros({}, totals_.options().dtype(totals_.is_cpu() ? at::kDouble : at::kFloat))),
      stop_requested_(at::zeros({}, parameters.riders().options())) {}

void Step::set(double learning_rate, bool stop_requested) {
  learning_rate_.fill_(learning_rate);
  stop_requested_.fill_(stop_requested ? 1 : 0);
}

void Step::begin() {
  parameters_.clear();
  is_first_batch_ = true;
  parameters_.riders()[kStop].copy_(stop_requested_);
}

void Step::accumulate(const loader::Batch& batch, std::int64_t samples, bool last) {
  if (last) averager_.before_forward();
  // Synchronised batch norm exchanges statistics in the forward pass: a rank without samples must
  // run it, too.
  const bool skip = batch.size() == 0 && !model_->synchronizes_batch_norm();
  const at::Tensor loss =
      (skip ? loss_of_nothing() : loss_of(batch)) * averager_.loss_scale(samples);
  if (last) {
    averager_.backward(loss);
  } else {
    loss.backward();
  }
  if (averager_.averages_in_backward()) return;
  parameters_.collect_gradients(/*add=*/!is_first_batch_);
  is_first_batch_ = false;
}

void Step::finish() {
  averaging_seconds_ = 0;
  timed([&] { averager_.finish(); });
  if (averager_.averages_in_backward()) parameters_.collect_gradients(/*add=*/false);
  totals_.add_(parameters_.riders().narrow(0, 0, kRiders));
  if (!totals_.is_cpu() || std::isfinite(last().loss)) update(averager_.owned_shard());
  timed([&] { averager_.barrier(); });
}

void Step::update(comm::Shard part) {
  if (options_.max_gradient_norm) {
    timed([&] { averager_.all_gather(); });
    clip_gradients(part);
  }
  optimizer_.step(learning_rate_);
  parameters_.refresh_bf16_copy(part);
}

template <class Work>
void Step::timed(const Work& averaging) {
  const double begin_s = monotonic_seconds();
  averaging();
  averaging_seconds_ += monotonic_seconds() - begin_s;
}

/// The sum of the samples' losses, noted in the riders.
at::Tensor Step::loss_of(const loader::Batch& batch) {
  const at::Tensor logits = model_->forward(batch.images);
  const double smoothing = options_.label_smoothing;
  const models::BatchLoss loss =
      batch.is_mixed() ? models::mixed_batch_loss(logits, batch.labels, batch.other_labels,
                                                  batch.weights, smoothing)
                       : models::batch_loss(logits, batch.labels, smoothing);
  const at::NoGradGuard no_grad;
  const at::Tensor& riders = parameters_.riders();
  riders[kLoss].add_(loss.loss_sum);
  riders[kCorrect].add_(loss.correct);
  riders[kSamples].add_(batch.size());
  return loss.loss_sum;
}

/// As torch.nn.utils.clip_grad_norm_, without asking the device how long the gradient is.
void Step::clip_gradients(comm::Shard part) {
  const at::Tensor& gradients = parameters_.gradients();
  const at::Tensor norm = at::linalg_vector_norm(gradients, 2);
  part.of(gradients).mul_((*options_.max_gradient_norm / (norm + 1e-6)).clamp_max(1.0));
}

/// A rank without samples still takes part in the averaging: gradients of zero for every parameter.
at::Tensor Step::loss_of_nothing() const {
  at::Tensor sum = at::zeros({}, parameters_.values().options());
  for (const at::Tensor& parameter : parameters_.parameters()) sum = sum + parameter.sum() * 0;
  return sum;
}

StepSums Step::last() const { return to_sums(parameters_.riders()); }

StepSums Step::totals() const { return to_sums(totals_); }

void Step::restart_totals(const StepSums& start) {
  totals_[kLoss].fill_(start.loss);
  totals_[kCorrect].fill_(start.correct);
  totals_[kSamples].fill_(start.samples);
  totals_[kStop].fill_(start.stop_requests);
}

void require_finite(const StepSums& sums, std::int64_t step) {
  if (std::isfinite(sums.loss)) return;
  throw Error(ExitCode::kRunFailed, "the loss became " +
                                        std::string(std::isnan(sums.loss) ? "NaN" : "infinite") +
                                        " at step " + std::to_string(step) +
                                        ": lower learning_rate, or look for broken samples");
}

}  // namespace mnist_train::train
