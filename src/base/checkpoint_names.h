#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
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

}  // namespace mnist_train
