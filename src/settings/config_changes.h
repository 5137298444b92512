#pragma once

#include <string>
#include <vector>

namespace mnist_train::settings {

/// What differs between two effective configs, as `write_run_config` gives them: for each key that
/// `--set` could name a line such as `learning_rate: 0.1 (was 0.01)`.
std::vector<std::string> config_changes(const std::string& before, const std::string& now);

}  // namespace mnist_train::settings
