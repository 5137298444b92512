#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "imaging/image.h"

namespace mnist_train::imaging {

enum class Format { kPng, kJpeg, kWebp, kBmp, kPnm };

/// Names of files with such pictures, for messages.
inline constexpr const char* kPictureExtensions = ".jpg, .jpeg, .png, .webp, .bmp, .ppm, .pgm";

/// Returns the extension of a file's name in lower case, with its dot; "" if there is none.
std::string extension_of(std::string_view name);

/// Returns whether the extension of a file's name, in any case, is one of kPictureExtensions.
bool has_picture_extension(std::string_view name);

/// Returns the command that converts a picture of another format to PNG.
std::string conversion_command(const std::string& name);

/// Format and size of an image, from the first bytes of its file.
struct Header {
  Format format = Format::kPng;
  std::int64_t height = 0;  // as stored, before it is turned upright
  std::int64_t width = 0;
  /// Of PNG and JPEG as stored: gray 1, gray with alpha 2, RGB or palette 3, RGBA or CMYK 4.
  std::int64_t components = 0;
  int orientation = 1;  // of EXIF: 1 (upright) to 8
  /// An upright opaque PNG of 8 bits, or JPEG of gray or RGB, which all decoders read alike.
  bool is_plain = false;
};

/// Reads and checks the header of a picture without decoding or allocating anything. Throws
/// Error(kData) with `name` and the byte offset: an empty file, another format, a broken header, a
/// size of 0 or of more than `max_pixels`.
Header read_header(std::span<const std::uint8_t> bytes, const std::string& name,
                   std::int64_t max_pixels = kMostPixels);

/// Throws Error(kData) with `name`, the byte offset and `problem`.
[[noreturn]] void fail_at(const std::string& name, std::size_t offset, const std::string& problem);

/// Encodes an image as PNG, 8 bits per channel.
std::string encode_png(const Image& image);

/// Encodes an image as baseline JFIF. `quality` is from 1 to 100; from 90 on, chroma is not
/// subsampled.
std::string encode_jpeg(const Image& image, int quality);

struct DecodeOptions {
  Colour background = kWhite;  // under pixels that are not opaque
  std::int64_t max_pixels = kMostPixels;
};

/// Decodes a PNG, JPEG, WebP, BMP or PNM picture, recognised by its content, to 1 or 3 channels.
/// Its pixels are Pillow's: turned upright as ImageOps.exif_transpose does, composited with
/// `background` by Image.alpha_composite, and converted to RGB (palettes, CMYK) or 8 bits (16-bit
/// gray by its high byte); gamma and colour profiles are ignored. Gray with alpha stays gray if the
/// background is gray. Throws Error(kData) with `name` and, if known, the byte offset, as
/// read_header does, and for truncated or corrupt data.
Image decode(std::span<const std::uint8_t> bytes, const std::string& name,
             const DecodeOptions& options = {});

}  // namespace mnist_train::imaging
