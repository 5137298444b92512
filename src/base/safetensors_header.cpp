#include "base/safetensors_header.h"

#include <cstring>

namespace mnist_train {

std::optional<std::string_view> safetensors_header(std::span<const std::uint8_t> file) {
  std::uint64_t length = 0;
  static_assert(sizeof length == kSafetensorsLengthBytes);
  if (file.size() < sizeof length) return std::nullopt;
  std::memcpy(&length, file.data(), sizeof length);
  if (length > file.size() - sizeof length) return std::nullopt;
  return std::string_view(reinterpret_cast<const char*>(file.data()) + sizeof length, length);
}

}  // namespace mnist_train
