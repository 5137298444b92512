#pragma once

#include "data/dataset.h"

namespace mnist_train::data {

/// Reads a data set into memory, or opens it to be decoded as it is used.
inline Dataset open_dataset(const settings::DataOptions& options, std::int64_t seed = 1,
                            Splits splits = Splits::kBoth) {
  DatasetReader reader(options, seed, splits);
  return options.decode == settings::Decode::kOnce ? reader.read() : reader.stream();
}

}  // namespace mnist_train::data
