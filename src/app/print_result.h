#pragma once

#include <nlohmann/json.hpp>

namespace mnist_train::app {

/// One line on standard output. Throws Error(kRunFailed) when it does not arrive.
void print_result(const nlohmann::ordered_json& json);

}  // namespace mnist_train::app
