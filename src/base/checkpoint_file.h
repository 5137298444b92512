#pragma once

#include <array>
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

/// Returns the file name of the checkpoint taken after `step` optimizer steps, such as
/// "step-00000938.safetensors".
std::string checkpoint_name(std::int64_t step);

/// Returns the steps that have a checkpoint file in `folder`, in ascending order; none when there
/// is no such folder. The files are not opened, so they may be damaged. Throws Error(kCheckpoint)
/// when there is a folder that cannot be read.
std::vector<std::int64_t> saved_steps(const std::filesystem::path& folder);

/// The file, in the folder of checkpoints, that holds the best one.
inline constexpr const char* kBestCheckpoint = "best.safetensors";

/// Returns the checkpoint file of the last step in `folder`, if there is one. Throws like
/// `saved_steps`.
std::optional<std::filesystem::path> newest_checkpoint(const std::filesystem::path& folder);

/// Returns the checkpoint of the last step in `folder` whose bytes match its seal, else the best
/// one if its bytes do; nothing where no checkpoint is whole. Throws like `saved_steps`.
std::optional<std::filesystem::path> newest_whole_checkpoint(const std::filesystem::path& folder);

/// A safetensors file (https://github.com/huggingface/safetensors) begins with the length of its
/// header, in so many bytes, little-endian.
inline constexpr std::size_t kSafetensorsLengthBytes = 8;

/// The entry of the header that holds texts, by their names.
inline constexpr const char* kMetadataName = "__metadata__";

/// The entry of the header's metadata in which a checkpoint of ours describes its run, as
/// JSON.
inline constexpr const char* kCheckpointState = "mnist-train.state";

/// The seal is the hash of all bytes before it, the last ones of a checkpoint, which its header
/// lists as a tensor of this name.
inline constexpr const char* kSealName = "mnist-train.seal";
inline constexpr std::size_t kSealBytes = Hasher::kDigestBytes;

/// Returns the seal of the bytes that were hashed.
std::array<std::uint8_t, kSealBytes> seal_of(const Hasher& hasher);

/// Returns whether the last bytes of a file are the seal of those before them.
bool matches_seal(std::span<const std::uint8_t> file);

/// Returns whether torch.save wrote a file in its old format, which is not a zip archive: PyTorch
/// before 1.6 did, and later versions do when they are told so.
bool is_legacy_torch_file(std::span<const std::uint8_t> file);

/// Returns whether a file begins as a zip archive, which torch.save writes since PyTorch 1.6.
bool is_zip_file(std::span<const std::uint8_t> file);

/// What to do about a file in the old format, for the end of a message that names it.
inline constexpr const char* kLegacyTorchFile =
    "was written by torch.save in its old format (PyTorch before 1.6, or "
    "_use_new_zipfile_serialization=False); convert it in Python: "
    "torch.save(torch.load(OLD, map_location=\"cpu\", weights_only=True), NEW)";

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
