#pragma once

#include "app/worker.h"

namespace mnist_train::app {

/// Draws the first batch of a run as the model will see it, with its normalisation undone, a grid
/// for each rank. All ranks must call it; rank 0 writes the PNG file and prints what is where as
/// JSON. Throws Error.
void run_preview(Worker& worker);

}  // namespace mnist_train::app
