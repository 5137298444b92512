#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "imaging/image.h"

namespace mnist_train::imaging {

enum class Format { kPng, kJpeg };

/// Format and size of an image, from the first bytes of its file.
struct Header {
  Format format = Format::kPng;
  std::int64_t height = 0;
  std::int64_t width = 0;
  std::int64_t components = 0;  // as stored: gray 1, gray with alpha 2, RGB or palette 3, RGBA 4
};

/// Reads and checks the header of a PNG (its IHDR chunk) or a JPEG file (the segments up to the
/// frame header) without decoding or allocating anything. Throws Error(kData) with `name` and the
/// byte offset: an empty file, another format, a broken header, a size of 0 or beyond `limits`.
Header read_header(std::span<const std::uint8_t> bytes, const std::string& name,
                   const Limits& limits = {});

/// Throws Error(kData) with `name`, the byte offset and `problem`.
[[noreturn]] void fail_at(const std::string& name, std::size_t offset, const std::string& problem);

/// Encodes an image as PNG, 8 bits per channel.
std::string encode_png(const Image& image);

/// Encodes an image as baseline JFIF. `quality` is from 1 to 100; from 90 on, chroma is not
/// subsampled.
std::string encode_jpeg(const Image& image, int quality);

/// Treatment of pixels that are not opaque: alpha is dropped, or they are blended with white.
enum class Transparency { kDropped, kOnWhite };

/// Decodes a PNG or JPEG image to 1 or 3 channels, like its file: palettes are resolved, 16 bits
/// become 8, an orientation in EXIF is ignored, and alpha is dropped by default (all as in
/// torchvision's ImageFolder). Throws Error(kData) with `name` and, if known, the byte offset, as
/// read_header does, and for CMYK and truncated or corrupt data.
Image decode(std::span<const std::uint8_t> bytes, const std::string& name,
             const Limits& limits = {}, Transparency transparency = Transparency::kDropped);

}  // namespace mnist_train::imaging
