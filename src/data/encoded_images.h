#pragma once

#include <cstdint>
#include <optional>

#include "data/image_geometry.h"
#include "data/sample_view.h"
#include "settings/data_options.h"

namespace mnist_train::data {

/// Images that are decoded as they are used.
struct EncodedImages {
  SampleView samples;
  ImageGeometry geometry;  // what they are brought to
  settings::Decode decode = settings::Decode::kStream;
  std::optional<std::int64_t> threads{};  // nothing: as many as the process computes with
};

}  // namespace mnist_train::data
