#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

namespace mnist_train {

/// Returns the JSON value as text, on one line unless `indent` says otherwise. Bytes that are not
/// UTF-8, which names of files may hold, become replacement characters.
template <class Json>
std::string json_text(const Json& json, int indent = -1) {
  return json.dump(indent, ' ', /*ensure_ascii=*/false, Json::error_handler_t::replace);
}

/// Returns the text with every occurrence of `part`, which is not empty, replaced.
std::string replaced(std::string text, std::string_view part, std::string_view by);

/// Returns the text in single quotes, so that a shell takes it for one word.
std::string shell_quoted(std::string_view text);

/// Writes a result to standard output. Throws Error(kRunFailed) when it does not arrive.
void print_text(std::string_view text);

/// Writes a result to standard output, as JSON on one line. Throws Error(kRunFailed) when it does
/// not arrive.
void print_result(const nlohmann::ordered_json& json);

}  // namespace mnist_train
