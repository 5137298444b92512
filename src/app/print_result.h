#pragma once

#include <nlohmann/json.hpp>
#include <string_view>

namespace mnist_train::app {

/// To standard output. Throws Error(kRunFailed) when it does not arrive.
void print_text(std::string_view text);

/// One line on standard output. Throws Error(kRunFailed) when it does not arrive.
void print_result(const nlohmann::ordered_json& json);

}  // namespace mnist_train::app
