#pragma once

#include "app/worker.h"
#include "base/error.h"

namespace mnist_train::app {

/// Trains a whole run. Returns kDone, or kTerminated or kInterrupted when a signal ended it early
/// with everything saved. Collective. Throws Error.
ExitCode run_training(Worker& worker);

}  // namespace mnist_train::app
