#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <span>
#include <string_view>

namespace mnist_train {

/// A safetensors file (https://github.com/huggingface/safetensors) begins with the length of its
/// header, in so many bytes, little-endian.
inline constexpr std::size_t kSafetensorsLengthBytes = 8;

/// The entry of the header's "__metadata__" in which a checkpoint of ours describes its run, as
/// JSON.
inline constexpr const char* kCheckpointState = "mnist-train.state";

/// Returns the header of a safetensors file, which is JSON, or nothing where the file is too short
/// for it.
inline std::optional<std::string_view> safetensors_header(std::span<const std::uint8_t> file) {
  std::uint64_t length = 0;
  static_assert(sizeof length == kSafetensorsLengthBytes);
  if (file.size() < sizeof length) return std::nullopt;
  std::memcpy(&length, file.data(), sizeof length);
  if (length > file.size() - sizeof length) return std::nullopt;
  return std::string_view(reinterpret_cast<const char*>(file.data()) + sizeof length, length);
}

}  // namespace mnist_train
