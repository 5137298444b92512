#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <stdexcept>
#include <vector>

#include "support/catch.h"

namespace mnist_train::testing {

/// Flips one bit of a file in place. Rewriting the file for each of thousands of bits would take
/// minutes, because file systems flush a file that is truncated and rewritten.
inline void flip_bit(const std::filesystem::path& path, std::size_t byte, unsigned bit) {
  std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
  file.seekg(static_cast<std::streamoff>(byte));
  const int value = file.get();
  file.seekp(static_cast<std::streamoff>(byte));
  file.put(static_cast<char>(static_cast<unsigned>(value) ^ (1U << bit)));
  if (!file.flush()) throw std::runtime_error("cannot change " + path.string());
}

inline const std::vector<unsigned> kAllBits{0, 1, 2, 3, 4, 5, 6, 7};

/// Calls `check` for each of `bits` in each of the first `bytes` bytes, with only that bit flipped.
template <class Check>
void for_each_flipped_bit(const std::filesystem::path& path, const std::vector<unsigned>& bits,
                          const Check& check, std::size_t bytes = SIZE_MAX) {
  bytes = std::min<std::size_t>(bytes, std::filesystem::file_size(path));
  for (std::size_t byte = 0; byte < bytes; ++byte) {
    for (const unsigned bit : bits) {
      INFO("bit " << bit << " of byte " << byte);
      flip_bit(path, byte, bit);
      check();
      flip_bit(path, byte, bit);
    }
  }
}

}  // namespace mnist_train::testing
