#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>

namespace mnist_train::checkpoint {

/// CRC-32 of every file in a zip archive, by name, as its central directory states it (APPNOTE.TXT
/// 4.3.12 to 4.3.16, ZIP64 included). PyTorch's reader does not compare them. Throws
/// std::runtime_error where there is no such directory, or a name stands in it twice.
std::map<std::string, std::uint32_t> zip_checksums(std::span<const std::uint8_t> archive);

}  // namespace mnist_train::checkpoint
