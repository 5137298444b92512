#pragma once

#include "data/dataset.h"

namespace mnist_train::data {

/// Reads a data set into memory, or opens it to be decoded as it is used.
inline Dataset open_dataset(const settings::DataOptions& options, Splits splits = Splits::kBoth) {
  DatasetReader reader(options, splits);
  return options.decode == settings::Decode::kOnce ? reader.read() : reader.stream();
}

}  // namespace mnist_train::data
