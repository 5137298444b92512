#pragma once

#include <string>
#include <vector>

#include "settings/data_options.h"

namespace mnist_train::data {

/// What the classes of a data set that is known by name are called, by number: Fashion-MNIST's as
/// its authors list them. Empty where the numbers are the names (MNIST) or the data bring names of
/// their own (a format).
std::vector<std::string> class_names(const settings::DataOptions& options);

}  // namespace mnist_train::data
