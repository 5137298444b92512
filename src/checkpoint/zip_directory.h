#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>

namespace mnist_train::checkpoint {

/// Returns the CRC-32 of every file in a zip archive, by name, from its central directory
/// (APPNOTE.TXT 4.3.12 to 4.3.16, ZIP64 included). Throws std::runtime_error where the directory is
/// missing or damaged, or names a file twice.
std::map<std::string, std::uint32_t> zip_checksums(std::span<const std::uint8_t> archive);

}  // namespace mnist_train::checkpoint
