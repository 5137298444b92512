#include <png.h>

#include "base/error.h"
#include "imaging/codec.h"

namespace mnist_train::imaging {

namespace {

/// libpng's simplified interface, which returns failures instead of jumping out of its functions.
struct PngImage : png_image {
  PngImage() : png_image{} { version = PNG_IMAGE_VERSION; }
  PngImage(const PngImage&) = delete;
  PngImage& operator=(const PngImage&) = delete;
  ~PngImage() { png_image_free(this); }
};

[[noreturn]] void fail(const std::string& name, const png_image& image) {
  throw Error(ExitCode::kData, name + ": a broken PNG image: " + image.message);
}

/// Removes what lies behind every pixel's colour: how opaque it is.
void remove_alpha(Image& image, Transparency transparency) {
  constexpr int kWhite = 255;
  constexpr int kOpaque = 255;
  const auto channels = static_cast<std::size_t>(image.channels);
  const std::size_t pixels = image.pixels.size() / (channels + 1);
  for (std::size_t pixel = 0; pixel < pixels; ++pixel) {
    const int alpha = image.pixels[pixel * (channels + 1) + channels];
    image.was_transparent = image.was_transparent || alpha < kOpaque;
    for (std::size_t channel = 0; channel < channels; ++channel) {
      int value = image.pixels[pixel * (channels + 1) + channel];
      if (transparency == Transparency::kOnWhite) {
        value = (value * alpha + kWhite * (kOpaque - alpha) + kOpaque / 2) / kOpaque;
      }
      image.pixels[pixel * channels + channel] = static_cast<std::uint8_t>(value);
    }
  }
  image.pixels.resize(image.bytes());
}

}  // namespace

Image decode_png(std::span<const std::uint8_t> bytes, const Header& header, const std::string& name,
                 Transparency transparency) {
  PngImage png;
  if (png_image_begin_read_from_memory(&png, bytes.data(), bytes.size()) == 0) {
    fail(name, png);
  }
  if (png.width != header.width || png.height != header.height) {
    fail_at(name, 16, "a PNG image whose size is not that of its header");
  }
  png.flags |= PNG_IMAGE_FLAG_16BIT_sRGB;  // as 8 bits are, instead of linear light
  const bool alpha = (png.format & PNG_FORMAT_FLAG_ALPHA) != 0;
  png.format &= PNG_FORMAT_FLAG_COLOR | PNG_FORMAT_FLAG_ALPHA;  // 8 bits, no palette
  Image image{header.height, header.width, (png.format & PNG_FORMAT_FLAG_COLOR) != 0 ? 3 : 1, {}};
  image.pixels.resize(PNG_IMAGE_SIZE(png));
  if (png_image_finish_read(&png, nullptr, image.pixels.data(), 0, nullptr) == 0) {
    fail(name, png);
  }
  if (alpha) remove_alpha(image, transparency);
  return image;
}

std::string encode_png(const Image& image) {
  PngImage png;
  png.width = static_cast<png_uint_32>(image.width);
  png.height = static_cast<png_uint_32>(image.height);
  png.format = image.channels == 3 ? PNG_FORMAT_RGB : PNG_FORMAT_GRAY;
  std::string bytes(PNG_IMAGE_PNG_SIZE_MAX(png), '\0');
  png_alloc_size_t size = bytes.size();
  if (png_image_write_to_memory(&png, bytes.data(), &size, 0, image.pixels.data(), 0, nullptr) ==
      0) {
    throw Error(ExitCode::kRunFailed, std::string("cannot encode a PNG image: ") + png.message);
  }
  bytes.resize(size);
  return bytes;
}

}  // namespace mnist_train::imaging
