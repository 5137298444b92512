#pragma once

#include <vector>

#include "data/dataset.h"
#include "settings/train_options.h"

namespace mnist_train::data {

/// Returns the weight of each class in the loss, by number, for the samples of the training set.
/// Throws ConfigKeyError for a name that no class has, and Error(kData) if a class has no samples
/// or all weights are 0.
std::vector<float> class_weights(const settings::ClassWeightOptions& options,
                                 const Dataset& dataset);

}  // namespace mnist_train::data
