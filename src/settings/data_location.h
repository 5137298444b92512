#pragma once

#include <filesystem>
#include <optional>
#include <vector>

#include "strict_json/value_type.h"

namespace mnist_train::settings {

/// Where one split (train or test) of a data set lies: a folder, one images file whose labels file
/// is found by its name, or both files by name. Paths are absolute.
struct DataLocation {
  std::filesystem::path images;  // a file, or a folder that holds images and labels
  std::optional<std::filesystem::path> labels;

  bool operator==(const DataLocation&) const = default;
};

/// Returns the JSON type of a location: a path, or {"images", "labels"}.
strict_json::Type<DataLocation> location();

/// Returns the JSON type of a list of locations, one for each process; null for none.
strict_json::Type<std::vector<DataLocation>> locations_by_rank();

}  // namespace mnist_train::settings
