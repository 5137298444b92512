#pragma once

#include <cstddef>
#include <filesystem>
#include <fstream>
#include <stdexcept>

namespace mnist_train::testing {

/// Flips one bit of a file in place. Writing the file anew would cost a thousand such tests
/// minutes: file systems take care of files that are emptied and written again.
inline void flip_bit(const std::filesystem::path& path, std::size_t byte, unsigned bit) {
  std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
  file.seekg(static_cast<std::streamoff>(byte));
  const int value = file.get();
  file.seekp(static_cast<std::streamoff>(byte));
  file.put(static_cast<char>(static_cast<unsigned>(value) ^ (1U << bit)));
  if (!file.flush()) throw std::runtime_error("cannot change " + path.string());
}

}  // namespace mnist_train::testing
