#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <vector>

#include "kernels/gather_batch.h"
#include "settings/augment_options.h"

namespace mnist_train::loader {

/// Says of a list of augmentations where each pixel comes from, entry by entry.
class PixelMapMaker {
 public:
  /// `size` is that of the stored images.
  explicit PixelMapMaker(settings::ImageSize size);

  /// Adds the next entry, whose drawn numbers begin in `column`. Returns false where it does more
  /// than to move, clear, mix or normalise pixels.
  bool add(const settings::AugmentationOptions& entry, std::int64_t column);
  /// Returns the map, whose bytes are normalised by `normalize` unless an entry has done it,
  /// without `drawn`.
  kernels::PixelMap finish(settings::NormalizeOptions normalize, at::Device device);

 private:
  std::int64_t steps() const;
  void add_step(kernels::PixelStep step, std::int64_t column, std::int64_t extent);

  kernels::PixelMap map_;
  std::optional<settings::NormalizeOptions> normalize_;  // the list's own
  std::vector<int> numbers_;                             // of all steps
};

}  // namespace mnist_train::loader
