#include <string_view>

#include "imaging/codec.h"
#include "report/records.h"
#include "support/catch.h"

namespace mnist_train::report {
namespace {

constexpr std::string_view kPrefix = "data:image/png;base64,";

std::vector<std::uint8_t> from_base64(std::string_view text) {
  constexpr std::string_view kDigits =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::vector<std::uint8_t> bytes;
  std::uint32_t bits = 0;
  int count = 0;
  for (const char digit : text) {
    if (digit == '=') break;
    bits = bits << 6 | static_cast<std::uint32_t>(kDigits.find(digit));
    count += 6;
    if (count < 8) continue;
    count -= 8;
    bytes.push_back(static_cast<std::uint8_t>(bits >> count));
  }
  return bytes;
}

TEST_CASE("a data URI decodes to the original pixels") {
  // These widths include base64 with no, one and two padding digits.
  for (const std::int64_t channels : {1, 3}) {
    for (std::int64_t width = 1; width < 9; ++width) {
      constexpr std::int64_t kHeight = 3;
      std::vector<std::uint8_t> planes;
      for (std::int64_t i = 0; i < channels * kHeight * width; ++i) {
        planes.push_back(static_cast<std::uint8_t>(i * 37 + 11));
      }
      const std::string uri = png_uri(image_of(planes.data(), channels, kHeight, width));
      REQUIRE(uri.starts_with(kPrefix));
      CHECK((uri.size() - kPrefix.size()) % 4 == 0);
      const imaging::Image decoded =
          imaging::decode(from_base64(std::string_view(uri).substr(kPrefix.size())), "picture");
      REQUIRE(decoded.channels == channels);
      REQUIRE(decoded.width == width);
      REQUIRE(decoded.height == kHeight);
      for (std::int64_t pixel = 0; pixel < kHeight * width; ++pixel) {
        for (std::int64_t channel = 0; channel < channels; ++channel) {
          CHECK(decoded.pixels[static_cast<std::size_t>(pixel * channels + channel)] ==
                planes[static_cast<std::size_t>(channel * kHeight * width + pixel)]);
        }
      }
    }
  }
}

TEST_CASE("a thumbnail is a small image itself, else a reduced JPEG") {
  const auto thumbnail = [](std::int64_t height, std::int64_t width) {
    const std::vector<std::uint8_t> planes(static_cast<std::size_t>(3 * height * width), 77);
    return thumbnail_uri(image_of(planes.data(), 3, height, width));
  };
  CHECK(thumbnail(64, 28).starts_with(kPrefix));
  const std::string uri = thumbnail(300, 1200);
  constexpr std::string_view kJpegPrefix = "data:image/jpeg;base64,";
  REQUIRE(uri.starts_with(kJpegPrefix));
  CHECK(uri.size() < 4000);
  const imaging::Image small =
      imaging::decode(from_base64(std::string_view(uri).substr(kJpegPrefix.size())), "picture");
  CHECK(small.width == 96);
  CHECK(small.height == 24);
  CHECK(std::abs(small.pixels[0] - 77) <= 2);
  CHECK(thumbnail(1, 5000).starts_with(kJpegPrefix));
}

}  // namespace
}  // namespace mnist_train::report
