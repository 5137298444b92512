#include "train/step_stats.h"

#include <ATen/ops/zeros_like.h>

#include <cmath>
#include <string>
#include <utility>

#include "accelerator/device.h"
#include "base/error.h"

namespace mnist_train::train {

namespace {

enum Slot : std::int64_t { kLoss, kCorrect, kSamples, kStop };

}  // namespace

StepSums& operator+=(StepSums& sums, const StepSums& more) {
  sums.loss += more.loss;
  sums.correct += more.correct;
  sums.samples += more.samples;
  sums.stop_requests += more.stop_requests;
  return sums;
}

StepSums to_sums(const at::Tensor& scalars) {
  const auto* values = scalars.const_data_ptr<float>();
  return {values[kLoss], values[kCorrect], values[kSamples], values[kStop]};
}

StepStats::StepStats(const at::Tensor& summed, at::Tensor of_shard)
    : of_shard_(std::move(of_shard)),
      scalars_(summed.narrow(0, 0, kScalars)),
      others_(summed.narrow(0, kScalars, summed.numel() - kScalars)),
      beginning_(at::zeros_like(summed)) {}

void StepStats::set_stop_requested(bool stop_requested) {
  if (stop_requested == requests_stop_) return;
  requests_stop_ = stop_requested;
  beginning_[kStop].fill_(stop_requested ? 1 : 0);
}

void StepStats::begin_shard(bool is_first) const {
  if (is_first) {
    of_shard_.copy_(beginning_);
  } else {
    of_shard_.zero_();
  }
}

StepSums StepStats::last() const { return to_sums(accelerator::to_host(scalars_)); }

at::Tensor StepStats::update_check() const { return scalars_[kStop]; }

void require_finite(const StepSums& sums, std::int64_t step,
                    const std::function<std::string()>& broken_parameter) {
  if (std::isfinite(sums.loss) && !std::isnan(sums.stop_requests)) return;
  const std::string at_step = "at step " + std::to_string(step);
  if (!std::isfinite(sums.loss)) {
    const char* const became = std::isnan(sums.loss) ? "NaN" : "infinite";
    throw Error(ExitCode::kRunFailed, std::string("the loss became ") + became + ' ' + at_step +
                                          ": lower learning_rate, or look for broken samples");
  }
  const std::string parameter = broken_parameter();
  const std::string broken =
      parameter.empty() ? "the update by its gradients" : "the gradient of " + parameter;
  throw Error(ExitCode::kRunFailed,
              at_step + " the loss is finite, but " + broken +
                  " is not: lower learning_rate; if gradient_averaging.compression is \"fp16\", "
                  "set it to \"bf16\" or \"none\", which hold larger numbers");
}

}  // namespace mnist_train::train
