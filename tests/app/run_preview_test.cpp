#include <algorithm>

#include "app/commands.h"
#include "support/catch.h"

namespace mnist_train::app {
namespace {

RankPreview preview(std::int64_t images, std::int64_t channels, int first) {
  RankPreview preview{channels, 4, 9, {}, {}};
  for (std::int64_t i = 0; i < images; ++i) {
    for (std::int64_t at = 0; at < channels * 36; ++at) {
      preview.planes.push_back(static_cast<char>(first + i * 40 + at));
    }
    preview.facts.push_back({{"sample", i}, {"label", 3}, {"other_label", 7}});
  }
  return preview;
}

std::uint8_t pixel(const imaging::Image& picture, std::int64_t y, std::int64_t x,
                   std::int64_t channel) {
  return picture
      .pixels[static_cast<std::size_t>((y * picture.width + x) * picture.channels + channel)];
}

TEST_CASE("every image is on the page, unchanged and at the stated position") {
  const std::int64_t channels = GENERATE(1, 3);
  const std::int64_t scale = GENERATE(1, 4);
  const std::vector<RankPreview> previews{preview(5, channels, 1), preview(0, channels, 0),
                                          preview(2, channels, 50)};
  const PreviewPage page = draw_page(previews, scale);
  CHECK(page.picture.channels == channels);
  CHECK(page.picture.pixels.size() == page.picture.bytes());
  REQUIRE(page.grids.size() == 3);
  for (std::size_t rank = 0; rank < 3; ++rank) {
    const auto& images = page.grids[rank].at("images");
    REQUIRE(images.size() == previews[rank].facts.size());
    for (std::size_t i = 0; i < images.size(); ++i) {
      CHECK(images[i].at("sample") == i);
      const auto top = images[i].at("top").get<std::int64_t>();
      const auto left = images[i].at("left").get<std::int64_t>();
      for (std::int64_t at = 0; at < channels * 36; ++at) {
        const auto place = static_cast<std::int64_t>(i) * channels * 36 + at;
        const auto expected =
            static_cast<std::uint8_t>(previews[rank].planes[static_cast<std::size_t>(place)]);
        const std::int64_t y = top + at % 36 / 9 * scale;
        const std::int64_t x = left + at % 9 * scale;
        CHECK(pixel(page.picture, y, x, at / 36) == expected);
        CHECK(pixel(page.picture, y + scale - 1, x + scale - 1, at / 36) == expected);
      }
    }
  }
}

RankPreview of_side(std::int64_t side, std::size_t images) {
  RankPreview preview{1, side, side, {}, {}};
  preview.planes.resize(static_cast<std::size_t>(side * side) * images);
  preview.facts.assign(images, {{"sample", 0}, {"label", 9}, {"class", "Ankle boot"}});
  return preview;
}

TEST_CASE("only small images are enlarged") {
  CHECK(default_scale({of_side(28, 128)}) == 4);
  CHECK(default_scale({of_side(32, 64), of_side(32, 65)}) == 3);
  CHECK(default_scale({of_side(96, 4)}) == 1);
  CHECK(default_scale({of_side(244, 32)}) == 1);
  CHECK(default_scale({of_side(28, 3000)}) == 2);  // 4 would make the page huge
  CHECK(default_scale({of_side(28, 60000)}) == 1);
}

TEST_CASE("classes are listed in the same rows and columns as the grid's images") {
  RankPreview mixed = preview(5, 1, 0);
  mixed.facts[3] = {{"sample", 3}, {"label", 12}, {"class", "Ankle boot"}};
  CHECK(classes_text(mixed) ==
        "  3+7         3+7         3+7\n"
        "  Ankle boot  3+7\n");
}

}  // namespace
}  // namespace mnist_train::app
