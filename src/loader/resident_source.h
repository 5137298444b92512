#pragma once

#include <memory>

#include "loader/batch_source.h"

namespace mnist_train::loader {

/// Makes the source of images that lie in memory: on a CPU the shared host memory itself, on a GPU
/// a copy, which is normalised once and for all where nothing is done to bytes before and there is
/// memory for it. The parameters are those of `make_batch_source`.
std::unique_ptr<BatchSource> make_resident_source(data::ImageSet images,
                                                  const settings::NormalizeOptions& normalize,
                                                  at::Device device, at::ScalarType type,
                                                  std::shared_ptr<Augmenter> augmenter);

}  // namespace mnist_train::loader
