#pragma once

#include "app/worker.h"

namespace mnist_train::app {

/// Selects the kernels of this program's own that compute on this rank's GPU in the place of
/// LibTorch's operations: those that work on the GPUs of all ranks, so that all compute alike.
/// Collective. Says in the log which do not work, and why.
void select_kernels(Worker& worker);

}  // namespace mnist_train::app
