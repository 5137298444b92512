#pragma once

#include <vector>

#include "report/metrics_log.h"
#include "train/step_times.h"

namespace mnist_train::app {

/// A rank's times as numbers that can be summed over ranks: zeros but in its own place.
std::vector<double> pack_times(const train::StepTimes& times, int rank, int world_size);

/// What `pack_times` of all ranks sum up to, but for ranks without steps.
std::vector<report::RankTimes> unpack_times(const std::vector<double>& sums);

}  // namespace mnist_train::app
