#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

namespace mnist_train {

inline constexpr std::size_t kSafetensorsLengthBytes = 8;  // of the length that comes first

/// The header of a safetensors file (https://github.com/huggingface/safetensors), which is JSON:
/// its length, little-endian, and then the text. Nothing where the file is too short for it.
std::optional<std::string_view> safetensors_header(std::span<const std::uint8_t> file);

/// The entry of the header's "__metadata__" in which a checkpoint of ours describes its run, as
/// JSON.
inline constexpr const char* kCheckpointState = "mnist-train.state";

}  // namespace mnist_train
