#pragma once

#include <string>

#include "strict_json/value_type.h"

namespace mnist_train::strict_json {

/// JSON Schemas of what objects have to be like, out of which rules over several keys are made.

/// The key is there, and not null.
Json given(const std::string& key);
/// The key is there and has this value.
Json equal(const std::string& key, const Json& value);
/// Where the key is there, its value follows the schema.
Json has(const std::string& key, const Json& schema);
Json none_of(const Json& schema);
Json all_of(const std::vector<Json>& schemas);
Json when(const Json& condition, const Json& then);

}  // namespace mnist_train::strict_json
