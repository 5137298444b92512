#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "data/encoded_set.h"
#include "data/image_geometry.h"
#include "settings/data_options.h"

namespace mnist_train::data {

/// Images that are decoded as they are used.
struct EncodedImages {
  std::shared_ptr<const EncodedSet> set;
  ImageGeometry geometry;
  settings::Decode decode = settings::Decode::kStream;
  std::optional<std::int64_t> threads{};  // else as many as the process computes with

  /// Decodes a sample to planes [channels,height,width] at `out`. `buffer` is what EncodedSet::read
  /// may want. Throws Error(kData).
  void decode_to(std::uint8_t* out, std::int64_t sample, std::vector<std::uint8_t>& buffer) const;
};

}  // namespace mnist_train::data
