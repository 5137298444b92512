#include "report/page/config_values.h"

namespace mnist_train::report {

namespace {

constexpr int kMaxDepth = 10;

void collect(const nlohmann::json& value, const std::string& key, int depth, ConfigValues& values) {
  if (!value.is_object() || depth == kMaxDepth) {
    values[key] = config_text(value);
    return;
  }
  const std::string prefix = key.empty() ? "" : key + ".";
  for (const auto& [name, member] : value.items()) {
    collect(member, prefix + name, depth + 1, values);
  }
}

}  // namespace

std::string config_text(const nlohmann::json& value) {
  return value.is_string() ? value.get<std::string>()
                           : value.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

ConfigValues config_values(const nlohmann::json& config) {
  ConfigValues values;
  if (config.is_object()) collect(config, "", 0, values);
  return values;
}

}  // namespace mnist_train::report
