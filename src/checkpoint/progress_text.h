#pragma once

#include <string>

#include "train/progress.h"

namespace mnist_train::checkpoint {

/// Progress as JSON text and back, exactly: numbers are written so that reading gives the same
/// bits.
std::string progress_to_text(const train::Progress& progress);

/// Throws Error(kCheckpoint) on anything that `progress_to_text` does not write.
train::Progress progress_from_text(const std::string& text);

}  // namespace mnist_train::checkpoint
