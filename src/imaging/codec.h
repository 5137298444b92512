#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "imaging/image.h"

namespace mnist_train::imaging {

enum class Format { kPng, kJpeg };

/// Format and size of an image, as the first bytes of its file say.
struct Header {
  Format format = Format::kPng;
  std::int64_t height = 0;
  std::int64_t width = 0;
  std::int64_t components = 0;  // as stored: gray 1, gray with alpha 2, colour or palette 3, 4
};

/// Reads and checks the header of a PNG (its IHDR chunk) or a JPEG file (the segments up to the
/// frame header) without decoding or allocating anything. Throws Error(kData) with `name` and the
/// byte offset: an empty file, another format, a broken header, a size of 0 or beyond `limits`.
Header read_header(std::span<const std::uint8_t> bytes, const std::string& name,
                   const Limits& limits = {});

/// Throws Error(kData) with `name`, the byte offset and `problem`.
[[noreturn]] void fail_at(const std::string& name, std::size_t offset, const std::string& problem);

/// Encodes an image as PNG, 8 bits a channel, without loss.
std::string encode_png(const Image& image);

/// Encodes an image as baseline JFIF. `quality` is from 1 to 100; colour is not subsampled from 90
/// on.
std::string encode_jpeg(const Image& image, int quality);

/// What becomes of pixels that are not opaque: their colour alone counts, or white shines through.
enum class Transparency { kDropped, kOnWhite };

/// Decodes a PNG or JPEG image to 1 or 3 channels, as its file has colour or not: palettes are
/// resolved, 16 bits become 8, an orientation in EXIF is ignored, and transparency is dropped
/// unless `transparency` says otherwise (all as in torchvision's ImageFolder). Throws Error(kData)
/// with `name` and, where it is known, the byte offset: what read_header refuses, CMYK, truncated
/// or corrupt data.
Image decode(std::span<const std::uint8_t> bytes, const std::string& name,
             const Limits& limits = {}, Transparency transparency = Transparency::kDropped);

/// Decode a file of one format, whose header was checked, as `decode` does.
Image decode_png(std::span<const std::uint8_t> bytes, const Header& header, const std::string& name,
                 Transparency transparency);
Image decode_jpeg(std::span<const std::uint8_t> bytes, const Header& header,
                  const std::string& name);

}  // namespace mnist_train::imaging
