#pragma once

#include "app/worker.h"

namespace mnist_train::app {

/// Classifies image files in one process and prints a JSON object a line for each, in the order in
/// which they were named: `file`, `guess`, `scores`. Images are converted to the model's channels
/// and size and normalised as in the run; light and dark are taken as they are. Throws Error(kData)
/// in the end that names every file that cannot be read as an image; the others are printed.
void run_predictions(Worker& worker);

}  // namespace mnist_train::app
