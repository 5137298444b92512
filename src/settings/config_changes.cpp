#include "settings/config_changes.h"

#include <nlohmann/json.hpp>

namespace mnist_train::settings {

namespace {

using Json = nlohmann::ordered_json;

void compare(const Json& before, const Json& now, const std::string& key,
             std::vector<std::string>& lines) {
  if (before == now) return;
  if (!before.is_object() || !now.is_object()) {
    lines.push_back(key + ": " + now.dump() + " (was " + before.dump() + ")");
    return;
  }
  const std::string prefix = key.empty() ? "" : key + ".";
  for (const auto& [name, value] : now.items()) {
    compare(before.value(name, Json()), value, prefix + name, lines);
  }
  for (const auto& [name, value] : before.items()) {
    if (!now.contains(name)) compare(value, nullptr, prefix + name, lines);
  }
}

}  // namespace

std::vector<std::string> config_changes(const std::string& before, const std::string& now) {
  std::vector<std::string> lines;
  compare(Json::parse(before), Json::parse(now), "", lines);
  return lines;
}

}  // namespace mnist_train::settings
