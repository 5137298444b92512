#include "models/plugin_options.h"

#include <spdlog/fmt/fmt.h>
#include <spdlog/fmt/ranges.h>

#include <algorithm>

#include "base/error.h"

namespace mnist_train::models {

namespace {

bool contains(const std::vector<std::string>& list, const std::string& text) {
  return std::find(list.begin(), list.end(), text) != list.end();
}

}  // namespace

const nlohmann::json* PluginOptions::find(const std::string& name) {
  if (!contains(known_, name)) known_.push_back(name);
  const auto found = values_.find(name);
  return found == values_.end() ? nullptr : &*found;
}

void PluginOptions::add_error(const std::string& name, const std::string& message) {
  errors_.push_back("/model/options/" + name + ": " + message);
}

std::int64_t PluginOptions::integer(const std::string& name, std::int64_t otherwise,
                                    std::int64_t min, std::int64_t max) {
  const nlohmann::json* value = find(name);
  if (value == nullptr) return otherwise;
  const bool fits = value->is_number_integer() &&
                    (!value->is_number_unsigned() || value->get<std::uint64_t>() <= INT64_MAX);
  if (fits && *value >= min && *value <= max) return value->get<std::int64_t>();
  add_error(name,
            fmt::format("expected an integer from {} to {}, found {}", min, max, value->dump()));
  return otherwise;
}

double PluginOptions::number(const std::string& name, double otherwise, double min, double max) {
  const nlohmann::json* value = find(name);
  if (value == nullptr) return otherwise;
  if (value->is_number() && *value >= min && *value <= max) return value->get<double>();
  add_error(name,
            fmt::format("expected a number from {} to {}, found {}", min, max, value->dump()));
  return otherwise;
}

bool PluginOptions::boolean(const std::string& name, bool otherwise) {
  const nlohmann::json* value = find(name);
  if (value == nullptr) return otherwise;
  if (value->is_boolean()) return value->get<bool>();
  add_error(name, "expected true or false, found " + value->dump());
  return otherwise;
}

std::string PluginOptions::text(const std::string& name, const std::string& otherwise,
                                const std::vector<std::string>& choices) {
  const nlohmann::json* value = find(name);
  if (value == nullptr) return otherwise;
  if (value->is_string() && (choices.empty() || contains(choices, value->get<std::string>()))) {
    return value->get<std::string>();
  }
  const std::string expected =
      choices.empty() ? "text" : fmt::format("one of \"{}\"", fmt::join(choices, "\", \""));
  add_error(name, "expected " + expected + ", found " + value->dump());
  return otherwise;
}

void PluginOptions::require_correct(bool all_were_read) const {
  std::vector<std::string> errors = errors_;
  for (const auto& [name, value] : values_.items()) {
    if (!all_were_read || contains(known_, name)) continue;
    errors.push_back(
        fmt::format("/model/options/{}: unknown key; {}", name,
                    known_.empty() ? "the plug-in reads no options"
                                   : fmt::format("the plug-in reads {}", fmt::join(known_, ", "))));
  }
  if (!errors.empty()) throw ConfigKeyError(fmt::format("{}", fmt::join(errors, "\n")));
}

}  // namespace mnist_train::models
