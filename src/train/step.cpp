#include "train/step.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/zeros.h>

#include <cmath>
#include <string>
#include <utility>

#include "base/error.h"
#include "model/loss.h"

namespace mnist_train::train {

namespace {

enum Rider : std::int64_t { kLoss, kCorrect, kSamples, kStop };

StepSums to_sums(const at::Tensor& riders) {
  const at::Tensor host = riders.to(at::kCPU, at::kDouble);
  const auto* values = host.const_data_ptr<double>();
  return {values[kLoss], values[kCorrect], values[kSamples], values[kStop]};
}

}  // namespace

Step::Step(std::shared_ptr<model::Model> model, const FlatParameters& parameters,
           comm::GradientAverager& averager, Optimizer& optimizer)
    : model_(std::move(model)),
      parameters_(parameters),
      averager_(averager),
      optimizer_(optimizer),
      totals_(at::zeros({kRiders}, parameters.riders().options().dtype(at::kDouble))) {}

void Step::run(const batch::Batch& batch, std::int64_t global_batch_size, double learning_rate,
               bool stop_requested) {
  parameters_.gradients_and_riders().zero_();
  parameters_.riders()[kStop].fill_(stop_requested ? 1 : 0);
  averager_.before_forward();
  compute_gradients(batch, global_batch_size);
  averager_.finish();
  totals_.add_(parameters_.riders());
  if (totals_.is_cpu() && !std::isfinite(last().loss)) return;
  optimizer_.step(learning_rate);
}

void Step::compute_gradients(const batch::Batch& batch, std::int64_t global_batch_size) {
  if (batch.size() == 0) {
    averager_.backward(loss_of_nothing());
    return;
  }
  const model::BatchLoss loss = model::batch_loss(model_->forward(batch.images), batch.labels);
  {
    const at::NoGradGuard no_grad;
    const at::Tensor& riders = parameters_.riders();
    riders[kLoss].copy_(loss.loss_sum);
    riders[kCorrect].copy_(loss.correct);
    riders[kSamples].fill_(batch.size());
  }
  averager_.backward(loss.loss_sum * averager_.loss_scale(global_batch_size));
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
