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

/// A smooth picture, which JPEG preserves well.
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

/// Decodes an image, and checks that its header matches the format and the original.
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

TEST_CASE("PNG preserves every pixel") {
  for (const std::int64_t channels : {1, 3}) {
    const Image image = gradient(7, 5, channels);
    CHECK(decoded(encode_png(image), Format::kPng, image).pixels == image.pixels);
  }
}

TEST_CASE("JPEG approximately preserves pixels") {
  for (const std::int64_t channels : {1, 3}) {
    const Image image = gradient(19, 23, channels);
    const std::string bytes = encode_jpeg(image, 95);
    const Image back = decoded(bytes, Format::kJpeg, image);
    REQUIRE(back.pixels.size() == image.pixels.size());
    CHECK(greatest_difference(back, image) <= 8);
    CHECK(encode_jpeg(image, 30).size() < bytes.size());
  }
}

TEST_CASE("every truncated image is refused, and the error names it") {
  const Image image = gradient(16, 16, 3);
  for (const std::string& whole : {encode_png(image), encode_jpeg(image, 90)}) {
    // The last bytes of a PNG are an empty chunk, which decoders may ignore.
    for (std::size_t size = 0; size + 13 < whole.size(); size += 3) {
      INFO("cut off at byte " << size << " of " << whole.size());
      const std::string cut = whole.substr(0, size);
      CHECK_ERROR(decode(bytes_of(cut), "some/name.jpg"), ExitCode::kData, "some/name.jpg: ");
    }
  }
}

TEST_CASE("any damaged byte results in a data error or an image of the right size") {
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

TEST_CASE("a huge picture is refused from its header alone") {
  std::string png = encode_png(gradient(2, 2, 1));
  for (const std::size_t at : {16, 20}) png.replace(at, 4, std::string("\x00\x01\x86\xA0", 4));
  CHECK_ERROR(decode(bytes_of(png), "huge.png"), ExitCode::kData,
              "huge.png: byte 0: an image of 100000 x 100000");

  const std::string jpeg = encode_jpeg(gradient(20, 30, 1), 90);
  CHECK(error_of([&] { decode(bytes_of(jpeg), "name", {.max_pixels = 600}); }).message.empty());
  CHECK_ERROR(decode(bytes_of(jpeg), "name", {.max_pixels = 599}), ExitCode::kData,
              "data.max_pixels (599); raise it or shrink the image");
}

TEST_CASE("files of other types are refused") {
  const auto message = [](const std::string& bytes) {
    return error_of([&] { decode(bytes_of(bytes), "name"); }).message;
  };
  CHECK(message("") == "name: byte 0: an empty file instead of an image");
  CHECK_THAT(message("GIF89a"),
             ContainsSubstring("a GIF image") && ContainsSubstring("mogrify -format png name"));
  CHECK_THAT(error_of([&] { decode(bytes_of(std::string("GIF89a")), "a.JPG"); }).message,
             EndsWith("mogrify -format png a.JPG && rm a.JPG"));
  CHECK_THAT(message("some text"), ContainsSubstring("not a PNG, JPEG, WebP, BMP or PNM"));
  // A JPEG whose end marker precedes any image.
  CHECK_THAT(message("\xFF\xD8\xFF\xD9\xFF\xD9"), ContainsSubstring("no frame header"));
  const std::string two_start = from_hex("ffd8ffc0000e080002000202011100021100ffd9");
  CHECK_THAT(message(two_start), ContainsSubstring("2 colour components"));
}

TEST_CASE("picture files are recognised by their extension") {
  for (const char* name : {"a.jpg", "b.JPEG", "c.d.png", ".x.WebP", "a.bmp", "a.ppm", "a.pgm",
                           "a.pnm", "a.jfif", "a.JPE"}) {
    INFO(name);
    CHECK(has_picture_extension(name));
  }
  for (const char* name : {"jpg", ".jpg", "a.jp", "a.", "a.gif", "a.jpg,", "a.tif", "a.pbm"}) {
    INFO(name);
    CHECK_FALSE(has_picture_extension(name));
  }
}

TEST_CASE("the border of an image consists of its outermost pixels in all channels") {
  const std::vector<std::uint8_t> gray{0, 51, 0, 102, 255, 102, 0, 51, 0};
  CHECK(border_brightness(gray, 3, 3) == Catch::Approx(306.0 / 8 / 255));
  const std::vector<std::uint8_t> colours{255, 255, 0, 0, 0, 0};
  CHECK(border_brightness(colours, 1, 2) == Catch::Approx(1.0 / 3));
}

TEST_CASE("light images in a dark data set look inverted, and vice versa; photographs do not") {
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
