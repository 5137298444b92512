#include "settings/data_location.h"

#include <utility>

#include "strict_json/schema.h"

namespace mnist_train::settings {

using strict_json::Json;
using strict_json::JsonCursor;
using strict_json::optional_of;
using strict_json::path;
using strict_json::Schema;

strict_json::Type<DataLocation> location() {
  Schema<DataLocation> pair;
  pair.add("images", &DataLocation::images, path(), "File with the images.");
  pair.add("labels", &DataLocation::labels, optional_of(path()), "File with the labels.");
  pair.check([](DataLocation&, const JsonCursor& cursor) {
    if (!cursor.gives("images") || !cursor.gives("labels")) {
      cursor.add_error("needs both images and labels; a folder that holds both is given as a path");
    }
  });
  strict_json::Type<DataLocation> type;
  Json fragment = pair.describe();
  for (Json& property : fragment["properties"]) property.erase("default");
  fragment["required"] = {"images", "labels"};
  type.fragment = {{"anyOf", {path().fragment, std::move(fragment)}}};
  type.keys = pair.keys();
  type.read = [pair](const JsonCursor& cursor) -> std::optional<DataLocation> {
    if (cursor.node().kind == strict_json::JsonKind::kObject) return pair.read(cursor);
    const auto images = path().read(cursor.or_else("{\"images\", \"labels\"}"));
    if (!images) return std::nullopt;
    return DataLocation{*images, std::nullopt};
  };
  type.write = [pair](const DataLocation& value) {
    return value.labels ? pair.write(value) : Json(value.images.string());
  };
  return type;
}

strict_json::Type<std::vector<DataLocation>> locations_by_rank() {
  using Locations = std::vector<DataLocation>;
  const strict_json::Type<std::optional<Locations>> inner =
      optional_of(strict_json::list_of(location()));
  strict_json::Type<Locations> type;
  type.fragment = inner.fragment;
  type.fragment["anyOf"][0]["minItems"] = 1;
  type.read = [inner](const JsonCursor& cursor) -> std::optional<Locations> {
    auto locations = inner.read(cursor);
    if (!locations) return std::nullopt;
    if (*locations && (*locations)->empty()) {
      cursor.add_mismatch("a location for each process, or null");
      return std::nullopt;
    }
    return locations->value_or(Locations{});
  };
  type.write = [inner](const Locations& locations) {
    return locations.empty() ? Json(nullptr) : inner.write(locations);
  };
  return type;
}

}  // namespace mnist_train::settings
