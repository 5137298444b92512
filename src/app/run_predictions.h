#pragma once

#include "app/worker.h"

namespace mnist_train::app {

/// One process: guesses for image files, a JSON object a line on standard output, in the order in
/// which they were named: `file`, `guess`, `scores`. Images are converted to the model's channels
/// and size and normalised as in the run; light and dark are taken as they are. Throws Error(kData)
/// in the end that names every file that is no image it can read; the others are printed all the
/// same.
void run_predictions(Worker& worker);

}  // namespace mnist_train::app
