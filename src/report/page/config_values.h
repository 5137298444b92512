#pragma once

#include <map>
#include <nlohmann/json.hpp>
#include <string>

namespace mnist_train::report {

/// A value of a config as one line of text.
std::string config_text(const nlohmann::json& value);

/// A config by dotted key ("model.name"), values as they are shown. Groups are taken apart as far
/// as ten levels, lists are kept whole.
using ConfigValues = std::map<std::string, std::string>;
ConfigValues config_values(const nlohmann::json& config);

}  // namespace mnist_train::report
