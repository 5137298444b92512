#pragma once

#include <nlohmann/json.hpp>
#include <string_view>

namespace mnist_train::app {

/// Writes `text` to standard output. Throws Error(kRunFailed) when it does not arrive.
void print_text(std::string_view text);

/// Writes one line of JSON to standard output. Throws Error(kRunFailed) when it does not arrive.
void print_result(const nlohmann::ordered_json& json);

}  // namespace mnist_train::app
