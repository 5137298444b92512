#pragma once

#include <string>

#include "base/json.h"
#include "train/progress.h"

namespace mnist_train::checkpoint {

/// Returns progress as JSON from which `progress_from_json` makes the same progress, to the bit.
OrderedJson progress_to_json(const train::Progress& progress);
/// Throws Error(kCheckpoint) on anything but what `progress_to_json` returns.
train::Progress progress_from_json(const OrderedJson& json);

/// Returns the same JSON as text.
std::string progress_to_text(const train::Progress& progress);
/// Throws Error(kCheckpoint) on anything but the text of `progress_to_text`.
train::Progress progress_from_text(const std::string& text);

}  // namespace mnist_train::checkpoint
