#pragma once

#include <nlohmann/json.hpp>
#include <string>

namespace mnist_train {

/// JSON whose objects keep the order of their keys.
using OrderedJson = nlohmann::ordered_json;

/// Returns the JSON value as text, on one line unless `indent` is given. Bytes that are not UTF-8,
/// as in file names, become replacement characters.
template <class Json>
std::string json_text(const Json& json, int indent = -1) {
  return json.dump(indent, ' ', /*ensure_ascii=*/false, Json::error_handler_t::replace);
}

}  // namespace mnist_train
