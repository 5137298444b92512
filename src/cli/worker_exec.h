#pragma once

#include "base/file.h"
#include "launch/job.h"

namespace mnist_train::cli {

/// Turns this process into a worker, in place, so that whoever started it keeps watching the same
/// process. `held` stays open in it. Throws Error(kRunFailed) when the worker's executable does not
/// start.
[[noreturn]] void exec_worker(const launch::Job& job, UniqueFd held);

}  // namespace mnist_train::cli
