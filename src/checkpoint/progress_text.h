#pragma once

#include <string>

#include "train/progress.h"

namespace mnist_train::checkpoint {

/// Returns progress as JSON from which `progress_from_text` makes the same progress, to the bit.
std::string progress_to_text(const train::Progress& progress);
/// Throws Error(kCheckpoint) on anything but the text of `progress_to_text`.
train::Progress progress_from_text(const std::string& text);

}  // namespace mnist_train::checkpoint
