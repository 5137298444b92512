#pragma once

#include "app/worker.h"
#include "data/dataset.h"

namespace mnist_train::app {

/// The samples: those that the launcher decodes for all its ranks, or, without a launcher of ours,
/// read by this process. Rank 0 says which were skipped. Throws Error(kData), also where there are
/// fewer to train on than processes.
data::Dataset open_dataset(Worker& worker, data::Splits splits = data::Splits::kBoth);

/// For the log: "60,000 training and 10,000 test images of 1x28x28, 10 classes".
std::string describe_dataset(const data::Dataset& dataset);

}  // namespace mnist_train::app
