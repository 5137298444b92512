#pragma once

#include <exception>

#include "app/worker.h"
#include "base/error.h"

namespace mnist_train::app {

/// Tells whoever started this rank why it ends: our launcher through its pipe, torchrun through
/// TORCHELASTIC_ERROR_FILE and standard error. `worker` is null when the rank did not get that far.
/// Returns the exit code.
ExitCode report_failure(const std::exception& error, Worker* worker);

}  // namespace mnist_train::app
