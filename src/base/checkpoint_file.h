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

#include "base/hash.h"

namespace mnist_train {

/// Returns the file name of the checkpoint after `step` optimizer steps:
/// "step-00000938.safetensors".
std::string checkpoint_name(std::int64_t step);

/// Returns the steps with a checkpoint file in `folder`, ascending; none without the folder. The
/// files are not opened and may be damaged. Throws Error(kCheckpoint) if the folder cannot be read.
std::vector<std::int64_t> saved_steps(const std::filesystem::path& folder);

/// The best checkpoint, in the folder of checkpoints.
inline constexpr const char* kBestCheckpoint = "best.safetensors";

/// Returns the checkpoint file of the last step in `folder`, if any. Throws like `saved_steps`.
std::optional<std::filesystem::path> newest_checkpoint(const std::filesystem::path& folder);

/// Returns the last checkpoint in `folder` with an intact seal, else the best one if its seal is
/// intact, else nothing. Throws like `saved_steps`.
std::optional<std::filesystem::path> newest_whole_checkpoint(const std::filesystem::path& folder);

/// A safetensors file (https://github.com/huggingface/safetensors) begins with the length of its
/// header, as a little-endian number of this size.
inline constexpr std::size_t kSafetensorsLengthBytes = 8;

/// The header's entry of named strings.
inline constexpr const char* kMetadataName = "__metadata__";

/// The entry of the metadata in which our checkpoints describe their run, as JSON.
inline constexpr const char* kCheckpointState = "mnist-train.state";

/// The seal at the end of a checkpoint is the hash of all bytes before it. The header lists it as a
/// tensor of this name.
inline constexpr const char* kSealName = "mnist-train.seal";
inline constexpr std::size_t kSealBytes = Hasher::kDigestBytes;

/// Returns whether a file ends with an intact seal.
bool matches_seal(std::span<const std::uint8_t> file);

/// Returns whether a file has the legacy format of torch.save, which is not a zip archive: written
/// by PyTorch before 1.6, and by later versions on request.
bool is_legacy_torch_file(std::span<const std::uint8_t> file);

/// Returns whether a file begins like a zip archive, the format of torch.save since PyTorch 1.6.
bool is_zip_file(std::span<const std::uint8_t> file);

/// Advice about a tar archive, for the end of a message that names it.
inline constexpr const char* kTarTorchFile =
    "unpack it, or, if torch.save of PyTorch 0.1 wrote it, convert it in Python: "
    "torch.save(torch.load(OLD, map_location=\"cpu\", weights_only=False), NEW)";

/// Returns the JSON header of a safetensors file, or nothing if the file is too short.
inline std::optional<std::string_view> safetensors_header(std::span<const std::uint8_t> file) {
  std::uint64_t length = 0;
  static_assert(sizeof length == kSafetensorsLengthBytes);
  if (file.size() < sizeof length) return std::nullopt;
  std::memcpy(&length, file.data(), sizeof length);
  if (length > file.size() - sizeof length) return std::nullopt;
  return std::string_view(reinterpret_cast<const char*>(file.data()) + sizeof length, length);
}

}  // namespace mnist_train
