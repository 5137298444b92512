#pragma once

#include <optional>

#include "settings/data_options.h"

namespace mnist_train::settings {

/// Returns the mean brightness of the training images, from 0 to 1, as the data set's name or else
/// its normalisation says it; nothing where neither does.
std::optional<double> trained_brightness(const DataOptions& options);

}  // namespace mnist_train::settings
