#pragma once

#include <cstdint>
#include <string_view>

namespace mnist_train::report {

/// CRC-32C (Castagnoli, RFC 3720), which guards the records of TensorBoard's files.
std::uint32_t crc32c(std::string_view bytes);

}  // namespace mnist_train::report
