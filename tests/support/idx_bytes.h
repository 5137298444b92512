#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

namespace mnist_train::testing {

/// Returns the header of an IDX file of unsigned bytes.
std::string idx_header(const std::vector<std::uint32_t>& shape);

/// Returns `count` pseudorandom bytes, which depend on `salt`.
std::string noise(std::size_t count, std::uint64_t salt = 0);

/// Returns `text` compressed as one gzip member.
std::string gzip(std::string_view text);

/// Four IDX files of random images and labels below `classes`.
struct SmallDataset {
  std::uint32_t train = 20;
  std::uint32_t test = 7;
  std::uint32_t height = 5;
  std::uint32_t width = 3;
  std::uint32_t classes = 10;
  bool compressed = false;

  /// Writes the files into a folder under their usual names.
  void write(const std::filesystem::path& folder) const;
};

}  // namespace mnist_train::testing
