#include "train/step_history.h"

#include <ATen/ops/empty.h>

#include <algorithm>

#include "accelerator/device.h"
#include "base/system.h"

namespace mnist_train::train {

StepHistory::StepHistory(at::Device device)
    : device_(device),
      rows_(at::empty({kSteps, StepStats::kScalars},
                      at::TensorOptions(at::kFloat).pinned_memory(!device.is_cpu()))),
      synchronized_s_(monotonic_seconds()) {}

void StepHistory::begin_epoch() { synchronized_s_ = monotonic_seconds(); }

void StepHistory::append(const at::Tensor& sums) {
  rows_.narrow(0, rows_used_, sums.size(0)).copy_(sums, /*non_blocking=*/true);
  rows_used_ += sums.size(0);
}

void StepHistory::name_next(std::int64_t step, std::int64_t samples_seen, double learning_rate) {
  unfinished_.push_back({step, samples_seen, learning_rate});
}

std::span<const FinishedStep> StepHistory::synchronize(StepSums& sums) {
  accelerator::synchronize(device_);
  const double now_s = monotonic_seconds();
  const double step_s =
      (now_s - synchronized_s_) / static_cast<double>(std::max<std::int64_t>(1, rows_used_));
  for (std::int64_t i = 0; i < rows_used_; ++i) {
    FinishedStep& step = unfinished_.at(static_cast<std::size_t>(i));
    step.sums = to_sums(rows_.select(0, i));
    step.finished_s = synchronized_s_ + step_s * static_cast<double>(i + 1);
    sums += step.sums;
    finished_.push_back(step);
  }
  const std::size_t count = unfinished_.size();
  unfinished_.clear();
  rows_used_ = 0;
  synchronized_s_ = now_s;
  return std::span(finished_).last(count);
}

}  // namespace mnist_train::train
