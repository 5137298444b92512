#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace mnist_train::report {

/// "step-00000938.safetensors": the file of a checkpoint that was taken after so many steps.
std::string checkpoint_name(std::int64_t step);

/// Steps that have a file in the folder `checkpoints`, ascending; empty when there is no such
/// folder. Order is by step, never by time of day. Throws Error(kCheckpoint) when there is one that
/// cannot be read.
std::vector<std::int64_t> saved_steps(const std::filesystem::path& folder);

/// The file of the last of them; whether it is whole only reading it can tell. Throws as above.
std::optional<std::filesystem::path> newest_checkpoint(const std::filesystem::path& folder);

}  // namespace mnist_train::report
