#pragma once

#include <filesystem>

#include "doctor/finding.h"
#include "settings/run_config.h"

namespace mnist_train::doctor {

/// Where runs go: `output` or runs/ in the working directory. Writes and removes a file there, or
/// in the nearest folder above it that exists.
Finding check_run_folder(const settings::RunConfig& config);
/// The data that the config asks for, and those sets that are looked up by name.
Findings check_data(const settings::RunConfig& config);

}  // namespace mnist_train::doctor
