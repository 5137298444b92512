#pragma once

#include <vector>

namespace mnist_train::launch {

/// What asks a run to save and end: SIGTERM, SIGINT, SIGUSR1, and SIGHUP unless it is ignored, as
/// nohup lets it be.
std::vector<int> stop_signals();

/// What a run that was asked to stop ends with: 130 after Ctrl-C, 143 after the others.
int stopped_exit_code(int signal);

}  // namespace mnist_train::launch
