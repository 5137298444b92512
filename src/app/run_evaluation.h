#pragma once

#include "app/worker.h"

namespace mnist_train::app {

/// Collective: test loss and accuracy of a checkpoint or weights file; rank 0 prints
/// `{"test_loss", "test_accuracy", "samples"}` on standard output. Throws Error.
void run_evaluation(Worker& worker);

/// One process: writes the weights of a checkpoint or weights file in another format. Throws
/// Error(kCheckpoint).
void run_export(Worker& worker);

}  // namespace mnist_train::app
