#pragma once

#include <spdlog/fmt/fmt.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/hash.h"

namespace mnist_train::imaging {

using Bytes = std::span<const std::uint8_t>;

/// An image in host memory.
struct Image {
  std::int64_t height = 0;
  std::int64_t width = 0;
  std::int64_t channels = 1;         // 1: gray, 3: RGB
  std::vector<std::uint8_t> pixels;  // [height, width, channels] u8

  std::size_t bytes() const { return static_cast<std::size_t>(height * width * channels); }
};

using Colour = std::array<std::uint8_t, 3>;  // red, green, blue
inline constexpr Colour kWhite{255, 255, 255};

/// Default limit of height * width, checked against the header before any allocation.
inline constexpr std::int64_t kMaxPixels = 64LL << 20;

/// Converts planes [channels, height, width] to an image.
Image from_planes(const std::uint8_t* planes, std::int64_t channels, std::int64_t height,
                  std::int64_t width);

/// Converts gray to RGB by repeating the channel, and RGB to gray by ITU-R 601-2 luma, like
/// Pillow's convert("L"). `channels` is 1 or 3.
Image with_channels(Image image, std::int64_t channels);

/// Resizes bilinearly with antialiasing: each output pixel is a weighted mean of input pixels, with
/// a triangle filter that widens as the image shrinks, like Pillow's resize(BILINEAR),
/// torchvision's resize with antialias, and DALI's default. Values are within 1 of Pillow's, which
/// rounds between its two passes.
Image resize(const Image& image, std::int64_t height, std::int64_t width);

/// The size to which a picture is resized, and the position of its top left pixel on a canvas.
/// Parts outside the canvas are cut off. A framing of the canvas size stretches the picture.
struct Framing {
  std::int64_t height = 0;
  std::int64_t width = 0;
  std::int64_t top = 0;
  std::int64_t left = 0;
};

/// Returns the framing that covers the canvas and crops both ends of one dimension. For a square
/// canvas, it matches torchvision's Resize of the shorter side and CenterCrop, including rounding.
Framing crop_framing(const Image& image, std::int64_t height, std::int64_t width);
/// Returns the framing that shows the whole picture between two bars, like Pillow's ImageOps.pad.
Framing pad_framing(const Image& image, std::int64_t height, std::int64_t width);

/// Draws the picture on a canvas of `background` and writes it to `out` as planes
/// [channels, height, width]. `channels` is 1 or 3; RGB is converted to gray before resizing.
void draw_planes(Image image, const Framing& framing, std::int64_t channels, std::int64_t height,
                 std::int64_t width, const Colour& background, std::uint8_t* out);

/// Returns the mean brightness, from 0 to 1, of the outermost pixels of an image [C,H,W].
double border_brightness(Bytes planes, std::int64_t height, std::int64_t width);

/// Returns whether an image with this border brightness is light although the model's training
/// images, with mean brightness `trained_mean`, are dark, or vice versa. False if that mean is near
/// 0.5. None of the 140,000 images of MNIST and Fashion-MNIST looks inverted (their brightest
/// border is 0.42), but all do once inverted.
bool looks_inverted(double border, double trained_mean);

enum class Format { kPng, kJpeg, kWebp, kBmp, kPnm };

/// File extensions of supported pictures, for messages.
inline constexpr const char* kPictureExtensions =
    ".jpg, .jpeg, .jpe, .jfif, .png, .webp, .bmp, .ppm, .pgm, .pnm";

/// Returns a file name's extension in lower case, with its dot, or "" if there is none.
std::string extension_of(std::string_view name);

/// Returns whether a file name's extension, in any case, is one of kPictureExtensions.
bool has_picture_extension(std::string_view name);

/// Returns the advice to convert a picture to PNG, with the command unless `name` is that of a
/// record in a database, "FILE: key …". The command removes a file that would be read again.
std::string conversion_advice(const std::string& name);

/// Returns, in parentheses, the command that converts all `count` files with this lower-case
/// extension in a folder, or "" if it is not the extension of an unsupported picture format.
std::string conversion_hint(std::string_view extension, std::int64_t count);

/// Format, size and metadata of an image, read from its file without decoding it.
struct Header {
  Format format = Format::kPng;
  std::int64_t height = 0;  // as stored, before rotation
  std::int64_t width = 0;
  /// As stored: gray 1, gray with alpha 2, RGB or palette 3, RGBA or CMYK 4; in BMP, always 3.
  std::int64_t components = 0;
  int orientation = 1;  // from EXIF or XMP: 1 (upright) to 8
  /// Whether all decoders interpret the file alike: true for upright opaque PNGs of up to 8 bits
  /// without gamma and for upright JPEGs of up to 3 components.
  bool is_plain = false;
};

/// Reads and checks a picture's header without decoding the pixels. Throws Error(kData) with `name`
/// and the byte offset for an empty file, another format, a broken header, or a size of 0 or above
/// `max_pixels`, and Error(kConfig) for a WebP picture if libwebp is missing.
Header read_header(Bytes bytes, const std::string& name, std::int64_t max_pixels = kMaxPixels);

/// Throws Error(kData) with `name`, the byte offset and the formatted `problem`.
template <class... Values>
[[noreturn]] void fail_at(const std::string& name, std::size_t offset,
                          fmt::format_string<Values...> problem, Values&&... values) {
  throw Error(ExitCode::kData, fmt::format("{}: byte {}: {}", name, offset,
                                           fmt::format(problem, std::forward<Values>(values)...)));
}

/// Encodes an image as PNG with 8 bits per channel.
std::string encode_png(const Image& image);

/// Encodes an image as baseline JFIF. `quality`: 1 to 100; from 90 on, chroma is not subsampled.
std::string encode_jpeg(const Image& image, int quality);

struct DecodeOptions {
  Colour background = kWhite;  // behind pixels that are not opaque
  std::int64_t max_pixels = kMaxPixels;
};

/// Decodes a PNG, JPEG, WebP, BMP or PNM picture, recognised by its content, to 1 or 3 channels.
/// Pixels match Pillow's, for JPEG within two levels: rotated upright as by
/// ImageOps.exif_transpose, composited with `background` as by Image.alpha_composite, and converted
/// to RGB (palettes, CMYK) or 8 bits (16-bit gray by its high byte); gamma and colour profiles are
/// ignored. Unlike Pillow, follows the PNG specification for the transparent colour of 2- or 4-bit
/// gray and 16-bit RGB. Of an animation, decodes the default image (PNG) or the first frame (WebP).
/// Gray with alpha stays gray if the background is gray. Throws like read_header, and Error(kData)
/// with `name` and, if known, the byte offset for truncated or corrupt data.
Image decode(Bytes bytes, const std::string& name, const DecodeOptions& options = {});

}  // namespace mnist_train::imaging
