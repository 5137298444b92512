#pragma once

#include <cstdint>

#include "data/idx_pair.h"
#include "settings/data_options.h"

namespace mnist_train::data {

/// The four files of a data set, and how many classes it is known to have at most.
struct DatasetFiles {
  IdxFiles train;
  IdxFiles test;
  std::int64_t max_classes = IdxPair::kMostClasses;
};

/// Finds the files of a data set that is given by name or by location; see data/dataset.h for where
/// it looks. Opens none of them. Throws Error(kData) naming every place where it looked.
DatasetFiles find_dataset_files(const settings::DataOptions& options);

}  // namespace mnist_train::data
