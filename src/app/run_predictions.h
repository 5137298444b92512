#pragma once

#include "app/worker.h"

namespace mnist_train::app {

/// Classifies image files on one process and prints a JSON object a line on standard output, in the
/// order in which they were named: `file`, `guess` (the predicted class), `scores`. Images are
/// converted to the model's channels and size and normalised as in the run; dark on light is not
/// inverted. Files that are not readable images are skipped, and listed in the Error(kData) that it
/// throws in the end.
void run_predictions(Worker& worker);

}  // namespace mnist_train::app
