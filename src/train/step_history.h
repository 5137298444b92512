#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "train/step_stats.h"

namespace mnist_train::train {

/// A step whose sums are known.
struct FinishedStep {
  std::int64_t step = 0;          // of the run, from 1
  std::int64_t samples_seen = 0;  // of the run, up to its end
  double learning_rate = 0;
  double finished_s = 0;  // CLOCK_MONOTONIC; on a GPU by even division of what several steps took
  StepSums sums{};
};

/// The steps since the last synchronisation. A GPU writes their sums into the host's memory as it
/// comes to the end of each step, so nothing waits for a single step.
class StepHistory {
 public:
  /// How many steps it can hold: so often at least there must be a synchronisation.
  static constexpr std::int64_t kSteps = 8192;

  explicit StepHistory(at::Device device);

  /// Starts the clock: the time before was no step's.
  void begin_epoch();
  /// Adds the sums of the next steps, [n, kScalars] f32 on the device. The tensor may be used again
  /// by later work of the device.
  void append(const at::Tensor& sums);
  /// Says which step the next sums are of that were added before.
  void name_next(std::int64_t step, std::int64_t samples_seen, double learning_rate);
  /// Waits for the device, and adds the sums of each step since the last call, all of which must
  /// have a name, to `sums`. Returns these steps, until the next call of anything here. Throws as
  /// accelerator::synchronize does.
  std::span<const FinishedStep> synchronize(StepSums& sums);
  /// Returns the steps up to the last `synchronize` that it has not returned yet.
  std::vector<FinishedStep> take() { return std::exchange(finished_, {}); }

 private:
  at::Device device_;
  at::Tensor rows_;  // [kSteps, kScalars] f32, page-locked where a GPU writes
  std::int64_t rows_used_ = 0;
  std::vector<FinishedStep> unfinished_;  // without sums
  std::vector<FinishedStep> finished_;
  double synchronized_s_ = 0;
};

}  // namespace mnist_train::train
