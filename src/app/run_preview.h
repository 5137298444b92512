#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "imaging/codec.h"

namespace mnist_train::app {

/// The images of one rank in a batch.
struct RankPreview {
  std::int64_t channels = 1;
  std::int64_t height = 0;
  std::int64_t width = 0;
  std::string planes;  // [n,C,H,W] bytes
  // Of each image "sample" and "label", also "class" if classes have names. A mixed image also has
  // "other_label", "other_class" and "weight".
  std::vector<nlohmann::ordered_json> facts;

  /// Returns all of it as text, which `from_text` reads.
  std::string to_text() const;
  static RankPreview from_text(const std::string& text);
};

/// The images of all ranks on one picture, a grid for each rank, in their order.
struct PreviewPage {
  imaging::Image picture;
  nlohmann::ordered_json grids;  // by rank: the facts, and "top" and "left" of each image
};

/// Returns by which factor small images are enlarged so that a person can tell what they show; less
/// if there are so many that the picture would become huge.
std::int64_t comfortable_scale(const std::vector<RankPreview>& previews);

/// Returns the classes of a rank's images, arranged as its grid is: names, else numbers.
std::string classes_text(const RankPreview& preview);

/// Puts all images on one picture, each pixel as a square of `scale` by `scale`.
PreviewPage draw_page(const std::vector<RankPreview>& previews, std::int64_t scale);

}  // namespace mnist_train::app
