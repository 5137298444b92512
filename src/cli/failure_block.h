#pragma once

#include <string>

#include "launch/failure_summary.h"
#include "launch/job.h"

namespace mnist_train::cli {

/// What a user reads when a run failed: the cause first, then its victims, the end of the failed
/// rank's log when it died without a word, the newest checkpoint, and what to type next.
std::string failure_block(const launch::RunFailure& failure, const launch::Job& job);

}  // namespace mnist_train::cli
