#pragma once

#include "app/worker.h"

namespace mnist_train::app {

/// Answers what `mnist-train doctor` asks of workers: computes on this rank's device, sums tensors
/// over the ranks in every way there is, and checks the sums; rank 0 prints one JSON object of
/// versions and times on standard output. Collective. Throws Error.
void run_diagnosis(Worker& worker);

}  // namespace mnist_train::app
