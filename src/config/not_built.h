#pragma once

#include <algorithm>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "config/schema.h"

namespace mnist_train::config {

/// `inner`, of which only the values in `built` work so far; the others are refused by name.
template <class T>
Type<T> built_so_far(Type<T> inner, const std::vector<T>& built) {
  std::string list;
  Json values = Json::array();
  for (const T& value : built) {
    values.push_back(inner.write(value));
    list += (list.empty() ? "" : " or ") + values.back().dump();
  }
  Type<T> type = inner;
  type.fragment["enum"] = values;
  type.note = "So far only " + list + ": the others are not built yet.";
  type.read = [inner, built, list](const Place& place) {
    std::optional<T> value = inner.read(place);
    if (value && std::find(built.begin(), built.end(), *value) == built.end()) {
      place.complain(inner.write(*value).dump() + " is not built yet; so far it can be " + list);
      value.reset();
    }
    return value;
  };
  return type;
}

/// Complains unless the value is null or `off`.
void refuse_not_built(const Place& place, const std::string& name, const Json& off);

/// A key that nothing stands behind yet: only `off` and null are accepted. Written as `off` when
/// asked.
template <class Owner>
Field<Owner> not_built(const std::string& name, const Json& off, Json fragment,
                       const std::string& doc, bool is_written = true) {
  fragment["enum"] = off.is_null() ? Json::array({nullptr}) : Json::array({off, nullptr});
  return {
      name,
      doc + " Not built yet.",
      std::move(fragment),
      [name, off](Owner&, const Place& place) { refuse_not_built(place, name, off); },
      [off, is_written](const Owner&) { return is_written ? std::optional(off) : std::nullopt; },
      {},
      {}};
}

}  // namespace mnist_train::config
