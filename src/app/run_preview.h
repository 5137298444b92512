#pragma once

#include "app/worker.h"

namespace mnist_train::app {

/// Collective: the first batch of a run as the model will see it, back from its normalisation, a
/// grid for each rank; rank 0 writes it as a PNG file and prints what is where as JSON. Throws
/// Error.
void run_preview(Worker& worker);

}  // namespace mnist_train::app
