#pragma once

#include "app/worker.h"
#include "base/error.h"

namespace mnist_train::app {

/// Collective: a whole training run. Gives kDone, or kTerminated or kInterrupted when a signal
/// ended it early with everything saved. Throws Error.
ExitCode run_training(Worker& worker);

}  // namespace mnist_train::app
