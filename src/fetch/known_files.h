#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace mnist_train::fetch {

/// One file of a data set, and what is in it once it is decompressed.
struct KnownFile {
  const char* name;
  std::uint64_t bytes;
  const char* sha256;
};

/// A data set that can be fetched by name.
struct KnownDataset {
  const char* name;
  std::span<const KnownFile> files;
  std::span<const char* const> mirrors;  // tried in this order; file names are appended
};

/// Throws Error(kConfig) for a name that is not known.
const KnownDataset& known_dataset(std::string_view name);

}  // namespace mnist_train::fetch
