#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "data/image_set.h"

namespace mnist_train::data {

/// Where one half of a data set comes from: its size is known, its samples are not yet read.
class ImageSource {
 public:
  virtual ~ImageSource() = default;

  /// An ImageSet without samples and classes.
  virtual const ImageSet& outline() const = 0;
  /// Only the first `count` samples will be used, so the others need not be read.
  virtual void limit(std::int64_t /*count*/) {}

  virtual std::size_t image_bytes() const = 0;
  virtual std::size_t label_bytes() const = 0;

  /// Reads everything, into memory of its own unless it can be mapped. Once. Throws Error(kData).
  virtual ImageSet read() = 0;
  /// Reads everything into memory of image_bytes() and label_bytes() that `owner` keeps, whose
  /// first bytes the result takes: there are fewer samples than in the outline where bad ones are
  /// skipped. Once.
  virtual ImageSet read_into(std::span<std::uint8_t> images, std::span<std::uint8_t> labels,
                             std::shared_ptr<const void> owner) = 0;
};

}  // namespace mnist_train::data
