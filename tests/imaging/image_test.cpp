#include <cstdlib>

#include "imaging/codec.h"
#include "support/catch.h"

namespace mnist_train::imaging {
namespace {

/// `(7 i² + 31 j² + 11 i j) % 256`: changes fast enough to tell filters apart.
Image pattern() {
  Image image{5, 6, 1, {}};
  for (int i = 0; i < 5; ++i) {
    for (int j = 0; j < 6; ++j) {
      image.pixels.push_back(
          static_cast<std::uint8_t>((7 * i * i + 31 * j * j + 11 * i * j) % 256));
    }
  }
  return image;
}

TEST_CASE("resizing gives Pillow's values") {
  struct Row {
    std::int64_t height, width;
    std::vector<int> expected;  // Image.resize((width, height), BILINEAR)
  };
  const std::vector<Row> rows{
      {2, 3, {51, 107, 94, 111, 137, 128}},
      {3, 4, {17, 93, 89, 78, 51, 152, 123, 131, 117, 145, 93, 125}},
      {5, 2, {46, 113, 66, 65, 101, 128, 150, 204, 117, 38}},
      {8, 9, {0,   16,  47,  108, 74,  59,  204, 124, 7,   3,   21,  55,  120, 89,  59,
              132, 93,  34,  8,   30,  68,  139, 111, 62,  44,  56,  74,  21,  47,  89,
              164, 142, 97,  83,  101, 121, 39,  68,  115, 194, 176, 136, 127, 149, 173,
              61,  93,  145, 229, 215, 180, 175, 202, 229, 91,  126, 159, 151, 118, 87,
              87,  119, 150, 112, 150, 167, 88,  40,  12,  15,  50,  83}},
  };
  for (const Row& row : rows) {
    const Image result = resize(pattern(), row.height, row.width);
    REQUIRE(result.pixels.size() == row.expected.size());
    for (std::size_t at = 0; at < row.expected.size(); ++at) {
      INFO(row.height << "x" << row.width << " at " << at);
      CHECK(std::abs(int{result.pixels[at]} - row.expected[at]) <= 1);
    }
  }
}

TEST_CASE("channels are resized apart from each other") {
  const Image gray = pattern();
  Image colour{5, 6, 3, {}};
  for (const std::uint8_t value : gray.pixels) {
    colour.pixels.insert(colour.pixels.end(), {value, static_cast<std::uint8_t>(255 - value), 7});
  }
  const Image small = resize(colour, 3, 2);
  const Image expected = resize(gray, 3, 2);
  REQUIRE(small.pixels.size() == 18);
  for (std::size_t at = 0; at < 6; ++at) {
    CHECK(small.pixels[3 * at] == expected.pixels[at]);
    CHECK(std::abs(255 - expected.pixels[at] - small.pixels[3 * at + 1]) <= 1);
    CHECK(small.pixels[3 * at + 2] == 7);
  }
}

TEST_CASE("pictures cover a canvas or are shown whole, rounded as torchvision and Pillow do") {
  struct Row {
    std::int64_t height, width;
    Framing cropped, padded;  // on 10 x 10
  };
  const std::vector<Row> rows{
      {20, 20, {10, 10, 0, 0}, {10, 10, 0, 0}},
      {20, 30, {10, 15, 0, -2}, {7, 10, 2, 0}},  // 2.5 and 1.5 are rounded to even
      {30, 20, {15, 10, -2, 0}, {10, 7, 0, 2}},
      {7, 4, {17, 10, -4, 0}, {10, 6, 0, 2}},
      {1, 1000, {10, 10000, 0, -4995}, {1, 10, 4, 0}},
  };
  const auto same = [](const Framing& a, const Framing& b) {
    return a.height == b.height && a.width == b.width && a.top == b.top && a.left == b.left;
  };
  for (const Row& row : rows) {
    INFO(row.height << " x " << row.width);
    const Image image{row.height, row.width, 1, {}};
    CHECK(same(cropped(image, 10, 10), row.cropped));
    CHECK(same(padded(image, 10, 10), row.padded));
  }
}

TEST_CASE("a canvas shows its background beside the picture, in gray as its brightness") {
  const Image gray{1, 2, 1, {9, 8}};
  std::vector<std::uint8_t> colour(12);
  draw_planes(gray, padded(gray, 2, 2), 3, 2, 2, {1, 2, 3}, colour.data());
  CHECK(colour == std::vector<std::uint8_t>{9, 8, 1, 1, 9, 8, 2, 2, 9, 8, 3, 3});
  std::vector<std::uint8_t> bright(4);
  draw_planes(gray, padded(gray, 2, 2), 1, 2, 2, {255, 0, 0}, bright.data());
  CHECK(bright == std::vector<std::uint8_t>{9, 8, 76, 76});
}

TEST_CASE("gray becomes colour and back, colour becomes its brightness") {
  const Image gray = pattern();
  const Image colour = with_channels(gray, 3);
  CHECK(colour.pixels.size() == 90);
  CHECK(with_channels(colour, 1).pixels == gray.pixels);
  const Image pure{1, 3, 3, {255, 0, 0, 0, 255, 0, 0, 0, 255}};
  CHECK(with_channels(pure, 1).pixels == std::vector<std::uint8_t>{76, 150, 29});
}

TEST_CASE("the border of an image is its outermost pixels, in all channels") {
  const std::vector<std::uint8_t> gray{0, 51, 0, 102, 255, 102, 0, 51, 0};
  CHECK(border_brightness(gray, 3, 3) == Catch::Approx(306.0 / 8 / 255));
  const std::vector<std::uint8_t> colours{255, 255, 0, 0, 0, 0};
  CHECK(border_brightness(colours, 1, 2) == Catch::Approx(1.0 / 3));
}

TEST_CASE(
    "light among dark images and dark among light ones look inverted, but no photograph does") {
  for (const double dark : {0.1307, 0.286}) {
    CHECK_FALSE(looks_inverted(0.0, dark));
    CHECK_FALSE(looks_inverted(0.4218, dark));  // the brightest border in Fashion-MNIST
    CHECK(looks_inverted(1 - 0.4218, dark));
    CHECK(looks_inverted(1.0, dark));
  }
  CHECK(looks_inverted(0.1, 0.8));
  CHECK_FALSE(looks_inverted(0.9, 0.8));
  for (const double border : {0.0, 0.5, 1.0}) CHECK_FALSE(looks_inverted(border, 0.473));
}

}  // namespace
}  // namespace mnist_train::imaging
