#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "imaging/image.h"

namespace mnist_train::app {

/// One rank's share of a batch.
struct PreviewShare {
  std::int64_t channels = 1;
  std::int64_t height = 0;
  std::int64_t width = 0;
  std::string planes;                         // [n, channels, height, width] bytes
  std::vector<nlohmann::ordered_json> facts;  // of each image: "sample", "label", …
  std::vector<std::string> captions;          // of each image: digits and "+"

  std::string to_text() const;
  static PreviewShare from_text(const std::string& text);
};

/// All shares on one picture, a grid each, in the order of the ranks. Images keep their pixels.
struct PreviewPage {
  imaging::Image picture;
  nlohmann::ordered_json grids;  // by rank: the facts, and "top" and "left" of each image
};

PreviewPage draw_page(const std::vector<PreviewShare>& shares);

}  // namespace mnist_train::app
