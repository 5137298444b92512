#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace mnist_train {

/// Returns the file name of the checkpoint taken after `step` optimizer steps, such as
/// "step-00000938.safetensors".
std::string checkpoint_name(std::int64_t step);

/// Returns the steps that have a checkpoint file in `folder`, in ascending order; none when there
/// is no such folder. The files are not opened, so they may be damaged. Throws Error(kCheckpoint)
/// when there is a folder that cannot be read.
std::vector<std::int64_t> saved_steps(const std::filesystem::path& folder);

/// Returns the checkpoint file of the last step in `folder`, if there is one. Throws like
/// `saved_steps`.
std::optional<std::filesystem::path> newest_checkpoint(const std::filesystem::path& folder);

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
