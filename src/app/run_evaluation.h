#pragma once

#include "app/worker.h"

namespace mnist_train::app {

/// Evaluates a checkpoint or weights file on the test set; rank 0 prints `{"test_loss",
/// "test_accuracy", "samples"}` on standard output. Collective. Throws Error.
void run_evaluation(Worker& worker);

/// Writes the weights of a checkpoint or weights file in another format, on one process. Throws
/// Error(kCheckpoint).
void run_export(Worker& worker);

}  // namespace mnist_train::app
