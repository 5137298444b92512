#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "imaging/image.h"

namespace mnist_train::app {

/// The images of a batch that one rank has.
struct RankPreview {
  std::int64_t channels = 1;
  std::int64_t height = 0;
  std::int64_t width = 0;
  std::string planes;                         // [n,C,H,W] bytes
  std::vector<nlohmann::ordered_json> facts;  // of each image: "sample", "label", …
  std::vector<std::string> captions;          // of each image: digits and "+"

  /// All of it as text, which `from_text` reads.
  std::string to_text() const;
  static RankPreview from_text(const std::string& text);
};

/// The images of all ranks on one picture, a grid for each rank, in their order.
struct PreviewPage {
  imaging::Image picture;
  nlohmann::ordered_json grids;  // by rank: the facts, and "top" and "left" of each image
};

/// Puts all images on one picture, unscaled.
PreviewPage draw_page(const std::vector<RankPreview>& previews);

}  // namespace mnist_train::app
