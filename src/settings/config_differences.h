#pragma once

#include <string>
#include <vector>

#include "settings/run_config.h"

namespace mnist_train::settings {

/// Returns a text for each key by which two configs differ, such as "seed was 1 and is 5". Left out
/// are keys that do not change what a step computes: how long a run is, what it records and where,
/// how its processes are started and where its data lie.
std::vector<std::string> config_differences(const RunConfig& before, const RunConfig& now);

/// Returns such texts for the keys that decide which samples a run has, and where they come from.
std::vector<std::string> data_differences(const RunConfig& before, const RunConfig& now);

}  // namespace mnist_train::settings
