#include "app/preview_page.h"

#include "support/catch.h"

namespace mnist_train::app {
namespace {

RankPreview preview(std::int64_t images, std::int64_t channels, int first) {
  RankPreview preview{channels, 4, 9, {}, {}, {}};
  for (std::int64_t i = 0; i < images; ++i) {
    for (std::int64_t at = 0; at < channels * 36; ++at) {
      preview.planes.push_back(static_cast<char>(first + i * 40 + at));
    }
    preview.facts.push_back({{"sample", i}, {"label", 3}});
    preview.captions.emplace_back("3+7");
  }
  return preview;
}

std::uint8_t pixel(const imaging::Image& picture, std::int64_t y, std::int64_t x,
                   std::int64_t channel) {
  return picture
      .pixels[static_cast<std::size_t>((y * picture.width + x) * picture.channels + channel)];
}

TEST_CASE("every image is on the page, pixel by pixel, where the facts say") {
  const std::int64_t channels = GENERATE(1, 3);
  const std::vector<RankPreview> previews{preview(5, channels, 1), preview(0, channels, 0),
                                          preview(2, channels, 50)};
  const PreviewPage page = draw_page(previews);
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
        CHECK(pixel(page.picture, top + at % 36 / 9, left + at % 9, at / 36) == expected);
      }
    }
  }
}

TEST_CASE("a preview travels as text") {
  const RankPreview sent = preview(3, 3, -100);
  const RankPreview got = RankPreview::from_text(sent.to_text());
  CHECK(got.planes == sent.planes);
  CHECK(got.facts == sent.facts);
  CHECK(got.captions == sent.captions);
  CHECK(got.width == 9);
}

}  // namespace
}  // namespace mnist_train::app
