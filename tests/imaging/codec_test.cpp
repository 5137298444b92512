#include "imaging/codec.h"

#include <cstdlib>

#include "support/catch.h"
#include "support/error_of.h"

namespace mnist_train::imaging {
namespace {

using namespace testing;

std::span<const std::uint8_t> bytes_of(const std::string& text) {
  return {reinterpret_cast<const std::uint8_t*>(text.data()), text.size()};
}

std::string from_hex(const std::string& digits) {
  std::string bytes;
  for (std::size_t at = 0; at < digits.size(); at += 2) {
    bytes += static_cast<char>(std::stoi(digits.substr(at, 2), nullptr, 16));
  }
  return bytes;
}

/// A picture that JPEG keeps well: colours that change slowly.
Image gradient(std::int64_t height, std::int64_t width, std::int64_t channels) {
  Image image{height, width, channels, {}};
  for (std::int64_t y = 0; y < height; ++y) {
    for (std::int64_t x = 0; x < width; ++x) {
      for (std::int64_t c = 0; c < channels; ++c) {
        image.pixels.push_back(static_cast<std::uint8_t>(2 * y + 4 * x + 50 * c));
      }
    }
  }
  return image;
}

int greatest_difference(const Image& a, const Image& b) {
  int greatest = 0;
  for (std::size_t at = 0; at < a.pixels.size(); ++at) {
    greatest = std::max(greatest, std::abs(int{a.pixels[at]} - int{b.pixels[at]}));
  }
  return greatest;
}

/// Decodes an image of this format, whose header must agree with the original.
Image decoded(const std::string& bytes, Format format, const Image& original) {
  const Header header = read_header(bytes_of(bytes), "name");
  CHECK(header.format == format);
  CHECK(header.height == original.height);
  CHECK(header.width == original.width);
  CHECK(header.components == original.channels);
  Image image = decode(bytes_of(bytes), "name");
  CHECK(image.channels == original.channels);
  return image;
}

TEST_CASE("PNG gives back every pixel") {
  for (const std::int64_t channels : {1, 3}) {
    const Image image = gradient(7, 5, channels);
    CHECK(decoded(encode_png(image), Format::kPng, image).pixels == image.pixels);
  }
}

TEST_CASE("JPEG gives back nearly the same pixels") {
  for (const std::int64_t channels : {1, 3}) {
    const Image image = gradient(19, 23, channels);
    const std::string bytes = encode_jpeg(image, 95);
    const Image back = decoded(bytes, Format::kJpeg, image);
    REQUIRE(back.pixels.size() == image.pixels.size());
    CHECK(greatest_difference(back, image) <= 8);
    CHECK(encode_jpeg(image, 30).size() < bytes.size());
  }
}

TEST_CASE("palettes and 16 bits become plain gray or RGB") {
  const std::string palette = from_hex(
      "89504e470d0a1a0a0000000d494844520000000200000002010300000048789f6700000006504c54450a141ec864"
      "327"
      "7a0b39c0000000c49444154789c63686070000001c400c1986635160000000049454e44ae426082");
  const Image colours = decode(bytes_of(palette), "name");
  CHECK(colours.channels == 3);
  CHECK(colours.pixels ==
        std::vector<std::uint8_t>{200, 100, 50, 10, 20, 30, 10, 20, 30, 200, 100, 50});
  const Image deep =
      decode(bytes_of(from_hex(
                 "89504e470d0a1a0a0000000d49484452000000030000000110000000006e1b972b0000000f494"
                 "44154789c6360606860f8ff1f000504027fe3804be00000000049454e44ae426082")),
             "name");
  CHECK(deep.pixels == std::vector<std::uint8_t>{0, 128, 255});
}

TEST_CASE("transparent pixels show the background, which opaque files do not notice") {
  // Gray with alpha: 5 at 0, 200 at 128.
  const std::string half = from_hex(
      "89504e470d0a1a0a0000000d49484452000000020000000108040000005e2bb7010000000d49444154789c6360"
      "6538d100000229014e8b86b6270000000049454e44ae426082");
  using Pixels = std::vector<std::uint8_t>;
  const auto decoded = [](const std::string& file, const Colour& background) {
    return decode(bytes_of(file), "name", {.background = background});
  };
  CHECK(decoded(half, kWhite).pixels == Pixels{255, 227});
  CHECK(decoded(half, {0, 0, 0}).pixels == Pixels{0, 100});
  CHECK(decoded(half, {255, 0, 0}).pixels == Pixels{255, 0, 0, 227, 100, 100});
  CHECK(decoded(half, kWhite).was_transparent);
  const Image opaque = decoded(encode_png(gradient(4, 4, 3)), {1, 2, 3});
  CHECK(opaque.pixels == gradient(4, 4, 3).pixels);
  CHECK_FALSE(opaque.was_transparent);
}

TEST_CASE("every cut-off image is refused with its name") {
  const Image image = gradient(16, 16, 3);
  for (const std::string& whole : {encode_png(image), encode_jpeg(image, 90)}) {
    // The last bytes of a PNG are a chunk without content, which decoders need not wait for.
    for (std::size_t size = 0; size + 13 < whole.size(); size += 3) {
      INFO("cut off at byte " << size << " of " << whole.size());
      const std::string cut = whole.substr(0, size);
      CHECK_ERROR(decode(bytes_of(cut), "some/name.jpg"), ExitCode::kData, "some/name.jpg: ");
    }
  }
}

TEST_CASE("no damage of a byte gets past the decoder as another error or a wrong size") {
  const Image image = gradient(12, 9, 3);
  for (const std::string& whole : {encode_png(image), encode_jpeg(image, 90)}) {
    for (std::size_t at = 0; at < whole.size(); ++at) {
      std::string damaged = whole;
      damaged[at] = static_cast<char>(~damaged[at]);
      const Failure failure = error_of([&] {
        const Image result = decode(bytes_of(damaged), "name", {.max_pixels = 100'000});
        CHECK(result.pixels.size() == result.bytes());
      });
      INFO("byte " << at);
      CHECK((failure.code == ExitCode::kData || failure.message.empty()));
    }
  }
}

TEST_CASE("a huge picture is refused by its header alone") {
  std::string png = encode_png(gradient(2, 2, 1));
  for (const std::size_t at : {16, 20}) png.replace(at, 4, std::string("\x00\x01\x86\xA0", 4));
  CHECK_ERROR(decode(bytes_of(png), "huge.png"), ExitCode::kData,
              "huge.png: byte 0: an image of 100000 x 100000");

  const std::string jpeg = encode_jpeg(gradient(20, 30, 1), 90);
  CHECK(error_of([&] { decode(bytes_of(jpeg), "name", {.max_pixels = 600}); }).message.empty());
  CHECK_ERROR(decode(bytes_of(jpeg), "name", {.max_pixels = 599}), ExitCode::kData,
              "data.max_pixels (599); raise it or shrink the image");
}

TEST_CASE("files of other kinds are refused") {
  const auto message = [](const std::string& bytes) {
    return error_of([&] { decode(bytes_of(bytes), "name"); }).message;
  };
  CHECK(message("") == "name: byte 0: an empty file instead of an image");
  CHECK_THAT(message("GIF89a"),
             ContainsSubstring("a GIF picture") && ContainsSubstring("mogrify -format png name"));
  CHECK_THAT(message("some text"), ContainsSubstring("not a PNG, JPEG, WebP, BMP or PNM"));
  // A JPEG whose end comes before any picture.
  CHECK_THAT(message("\xFF\xD8\xFF\xD9\xFF\xD9"), ContainsSubstring("no frame header"));
  const std::string two_start = from_hex("ffd8ffc0000e080002000202011100021100ffd9");
  CHECK_THAT(message(two_start), ContainsSubstring("2 colour components"));
}

TEST_CASE("files with a picture's extension are told from others") {
  for (const char* name : {"a.jpg", "b.JPEG", "c.d.png", ".x.WebP", "a.bmp", "a.ppm", "a.pgm"}) {
    INFO(name);
    CHECK(has_picture_extension(name));
  }
  for (const char* name : {"jpg", ".jpg", "a.jp", "a.", "a.gif", "a.jpg,", "a.tif", "a.pbm"}) {
    INFO(name);
    CHECK_FALSE(has_picture_extension(name));
  }
}

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
