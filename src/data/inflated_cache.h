#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "base/file.h"

namespace mnist_train::data {

/// Returns the content of a gzip file from the user's cache, where `keep_inflated` wrote it; null
/// if it is not there or was changed since. Inflating the 47 MB of MNIST takes a tenth of a second,
/// checking their hash five milliseconds.
std::shared_ptr<const MappedFile> find_inflated(std::span<const std::uint8_t> compressed);

/// Keeps the content of a gzip file, a header followed by values, in the folder `inflated` of the
/// user's cache, unless it is small or huge. Removes all but the eight most recently used files
/// there. A failure is no error: the next run inflates again.
void keep_inflated(std::span<const std::uint8_t> compressed, std::span<const std::uint8_t> header,
                   std::span<const std::uint8_t> values);

}  // namespace mnist_train::data
