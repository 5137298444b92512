#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "train/progress.h"

namespace mnist_train::checkpoint {

/// Returns progress as JSON from which `progress_from_json` makes the same progress, to the bit.
nlohmann::ordered_json progress_to_json(const train::Progress& progress);
/// Throws Error(kCheckpoint) on anything but what `progress_to_json` returns.
train::Progress progress_from_json(const nlohmann::ordered_json& json);

/// Returns the same JSON as text.
std::string progress_to_text(const train::Progress& progress);
/// Throws Error(kCheckpoint) on anything but the text of `progress_to_text`.
train::Progress progress_from_text(const std::string& text);

}  // namespace mnist_train::checkpoint
