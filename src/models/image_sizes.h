#pragma once

#include <cstdint>
#include <initializer_list>

#include "models/model.h"

namespace mnist_train::models {

/// Elements that are left of an image after unpadded convolutions with these square kernels, each
/// followed by a pooling by 2; `channels` are those of the last convolution. Throws Error(kConfig)
/// naming the model when nothing is left.
std::int64_t features_after_conv_and_pool(const char* model, const ImageShape& shape,
                                          std::initializer_list<std::int64_t> kernels,
                                          std::int64_t channels);

}  // namespace mnist_train::models
