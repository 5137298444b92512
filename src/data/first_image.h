#pragma once

#include <optional>

#include "data/image_source.h"
#include "settings/data_options.h"

namespace mnist_train::data {

/// Returns what the training images of a data set in files are brought to before any augmentation,
/// as far as the options or the header of its first image tell: files are not searched beyond that.
/// Returns nothing where they do not tell, or where something is wrong, which opening the data set
/// says.
std::optional<ImageGeometry> first_image_geometry(const settings::DataOptions& options);

}  // namespace mnist_train::data
