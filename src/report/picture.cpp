#include <algorithm>
#include <string_view>

#include "imaging/codec.h"
#include "imaging/image.h"
#include "report/records.h"

namespace mnist_train::report {

namespace {

constexpr std::int64_t kMaxExactSide = 64;
constexpr std::int64_t kThumbnailSide = 96;
constexpr int kJpegQuality = 85;
constexpr const char* kPngPrefix = "data:image/png;base64,";

std::string base64(std::string_view bytes) {
  constexpr std::string_view kDigits =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string text;
  text.reserve((bytes.size() + 2) / 3 * 4);
  for (std::size_t i = 0; i < bytes.size(); i += 3) {
    std::uint32_t three = 0;
    for (std::size_t j = i; j < i + 3; ++j) {
      three = three << 8 | (j < bytes.size() ? static_cast<unsigned char>(bytes[j]) : 0U);
    }
    for (int shift = 18; shift >= 0; shift -= 6) text += kDigits[three >> shift & 63U];
  }
  for (std::size_t i = 0; i < (3 - bytes.size() % 3) % 3; ++i) text[text.size() - 1 - i] = '=';
  return text;
}

imaging::Image make_image(const std::uint8_t* pixels, std::int64_t channels, std::int64_t height,
                          std::int64_t width) {
  imaging::Image image;
  image.channels = channels == 3 ? 3 : 1;
  image.height = height;
  image.width = width;
  const std::int64_t plane = height * width;
  for (std::int64_t pixel = 0; pixel < plane; ++pixel) {
    for (std::int64_t channel = 0; channel < image.channels; ++channel) {
      image.pixels.push_back(pixels[channel * plane + pixel]);
    }
  }
  return image;
}

}  // namespace

Picture make_picture(const std::uint8_t* pixels, std::int64_t channels, std::int64_t height,
                     std::int64_t width) {
  const imaging::Image image = make_image(pixels, channels, height, width);
  return {imaging::encode_png(image), height, width, image.channels};
}

std::string thumbnail_uri(const std::uint8_t* pixels, std::int64_t channels, std::int64_t height,
                          std::int64_t width) {
  const imaging::Image image = make_image(pixels, channels, height, width);
  const std::int64_t side = std::max(height, width);
  if (side <= kMaxExactSide) return kPngPrefix + base64(imaging::encode_png(image));
  const auto reduced = [&](std::int64_t size) {
    return std::max(std::int64_t{1}, size * std::min(side, kThumbnailSide) / side);
  };
  const imaging::Image small = imaging::resize(image, reduced(height), reduced(width));
  return "data:image/jpeg;base64," + base64(imaging::encode_jpeg(small, kJpegQuality));
}

std::string image_uri(const Picture& picture) { return kPngPrefix + base64(picture.png); }

}  // namespace mnist_train::report
