#include "train/step_log.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros_like.h>

#include <algorithm>
#include <cmath>

#include "accelerator/device.h"
#include "base/error.h"
#include "base/system.h"

namespace mnist_train::train {

namespace {

constexpr double kLongest_s = 0.5;  // between two synchronisations

enum Slot : std::int64_t { kLoss, kCorrect, kSamples, kStop };

/// Returns [kScalars] f32 of the host's memory as sums.
StepSums to_sums(const at::Tensor& scalars) {
  const auto* values = scalars.const_data_ptr<float>();
  return {values[kLoss], values[kCorrect], values[kSamples], values[kStop]};
}

}  // namespace

StepSums& operator+=(StepSums& sums, const StepSums& more) {
  sums.loss += more.loss;
  sums.correct += more.correct;
  sums.samples += more.samples;
  sums.stop_requests += more.stop_requests;
  return sums;
}

StepLog::StepLog(const at::Tensor& summed, at::Tensor of_shard,
                 const comm::Communicator& communicator, bool runs_ahead)
    : communicator_(communicator),
      of_shard_(std::move(of_shard)),
      scalars_(summed.narrow(0, 0, kScalars)),
      update_check_(scalars_[kStop]),
      others_(summed.narrow(0, kScalars, summed.numel() - kScalars)),
      beginning_(at::zeros_like(summed)),
      rows_(at::empty({kSteps, kScalars},
                      at::TensorOptions(at::kFloat).pinned_memory(!summed.is_cpu()))),
      begin_s_(monotonic_seconds()),
      any_runs_ahead_(communicator.sum_over_ranks(runs_ahead ? 1 : 0) > 0),
      synced_s_(monotonic_seconds()) {}

void StepLog::request_stop(bool requested) {
  if (requested == requests_stop_) return;
  requests_stop_ = requested;
  beginning_[kStop].fill_(requested ? 1 : 0);
}

void StepLog::begin_shard(bool is_first) const {
  is_first ? of_shard_.copy_(beginning_) : of_shard_.zero_();
}

StepSums StepLog::last() const { return to_sums(accelerator::to_host(scalars_)); }

void StepLog::begin_epoch() {
  begin_s_ = monotonic_seconds();
  steps_ = 0;
  synced_s_ = begin_s_;
}

void StepLog::append(const at::Tensor& sums) {
  rows_.narrow(0, rows_used_, sums.size(0)).copy_(sums, /*non_blocking=*/true);
  rows_used_ += sums.size(0);
}

void StepLog::name_next(std::int64_t step, std::int64_t samples_seen, double learning_rate) {
  unfinished_.push_back({step, samples_seen, learning_rate});
}

std::span<const FinishedStep> StepLog::synchronize(StepSums& sums) {
  accelerator::synchronize(scalars_.device());
  const double now_s = monotonic_seconds();
  const double step_s =
      (now_s - begin_s_) / static_cast<double>(std::max<std::int64_t>(1, rows_used_));
  for (std::int64_t i = 0; i < rows_used_; ++i) {
    FinishedStep& step = finished_.emplace_back(unfinished_.at(static_cast<std::size_t>(i)));
    step.sums = to_sums(rows_.select(0, i));
    step.finished_s = begin_s_ + step_s * static_cast<double>(i + 1);
    sums += step.sums;
  }
  const std::size_t count = unfinished_.size();
  unfinished_.clear();
  rows_used_ = 0;
  begin_s_ = now_s;
  return std::span(finished_).last(count);
}

void StepLog::synced() {
  const double now_s = monotonic_seconds();
  if (any_runs_ahead_) {
    const std::int64_t own = next_interval(steps_, now_s - synced_s_);
    const bool decides = communicator_.rank() == 0;
    interval_ = static_cast<std::int64_t>(
        communicator_.sum_over_ranks(decides ? static_cast<double>(own) : 0));
  }
  steps_ = 0;
  synced_s_ = now_s;
}

std::int64_t next_interval(std::int64_t steps, double seconds) {
  // At most twice as many: a few timed steps may have been quick by chance.
  const std::int64_t most = std::min(2 * steps, StepLog::kSteps);
  const double in_time = kLongest_s * static_cast<double>(steps) / std::max(seconds, 1e-9);
  return in_time < static_cast<double>(most)
             ? std::max<std::int64_t>(1, static_cast<std::int64_t>(in_time))
             : most;
}

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
