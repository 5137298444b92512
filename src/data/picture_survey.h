#pragma once

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "data/sources.h"

namespace mnist_train::data {

/// Sizes and kinds of the pictures of an image folder, from a sample of them.
struct PictureSurvey {
  std::int64_t count = 0;   // pictures that were looked at and can be used
  std::int64_t height = 0;  // upright, of the picture with the median shorter side
  std::int64_t width = 0;
  bool same_size = false;               // all have this height and width
  bool gray = false;                    // all, even if they are stored as colours
  bool light_corners = false;           // on average; transparent ones are white
  double elongated = 0;                 // fraction with one side more than twice the other
  double transparent = 0;               // fraction with an alpha channel
  std::vector<std::string> unusable{};  // messages

  std::int64_t shorter_side() const { return std::min(height, width); }
};

/// Reads the headers of up to 4,000 pictures of `folder` and decodes up to 64, evenly spread.
PictureSurvey survey_pictures(const ImageSource& pictures, const std::filesystem::path& folder);

}  // namespace mnist_train::data
