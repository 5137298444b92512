#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "strict_json/value_type.h"

namespace mnist_train::strict_json {

/// One key of a group and what it does to the group's struct.
template <class Owner>
struct Field {
  std::string name;
  std::string doc;  // a sentence or two
  Json fragment;    // JSON Schema of the value
  std::function<void(Owner&, const JsonCursor&)> read;
  std::function<std::optional<Json>(const Owner&)> write;  // nothing: the key is not written
  std::vector<std::string> other_names;                    // what other programs call it
  std::vector<KnownKey> nested;
};

/// The JSON Schema of an object with these keys.
template <class Owner>
Json describe_fields(const std::vector<Field<Owner>>& fields) {
  const Owner defaults{};
  Json properties = Json::object();
  for (const Field<Owner>& field : fields) {
    Json& property = properties[field.name];
    property["description"] = field.doc;
    property.update(field.fragment);
    if (std::optional<Json> value = field.write(defaults)) property["default"] = std::move(*value);
  }
  return {{"type", "object"}, {"properties", properties}, {"additionalProperties", false}};
}

/// The keys and those of the groups in them, for suggestions.
template <class Owner>
std::vector<KnownKey> keys_of(const std::vector<Field<Owner>>& fields) {
  std::vector<KnownKey> keys;
  for (const Field<Owner>& field : fields) {
    keys.push_back({"", field.name, field.other_names});
    for (const KnownKey& inner : field.nested) {
      keys.push_back({join_pointer("", field.name) + inner.group, inner.name, inner.other_names});
    }
  }
  return keys;
}

}  // namespace mnist_train::strict_json
