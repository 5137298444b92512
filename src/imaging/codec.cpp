#include <algorithm>

#include "base/file.h"
#include "base/print.h"
#include "imaging/formats.h"

namespace mnist_train::imaging {

namespace {

constexpr const char* kConvertToPng = "mogrify -format png ";

/// In the order of Format.
constexpr std::array<const Codec*, 5> kCodecs{&kPng, &kJpeg, &kWebp, &kBmp, &kPnm};

/// Throws Error(kData) with the kind of file, if known, and the command to convert a picture.
[[noreturn]] void refuse_format(Bytes bytes, const std::string& name) {
  const auto kind = binary_kind(text_of(bytes).substr(0, 1024));
  if (kind && kind->is_picture) {
    fail_at(name, 0, "{}, which is not supported; {}", kind->name, conversion_advice(name));
  }
  fail_at(name, 0, "{}not a PNG, JPEG, WebP, BMP or PNM (.ppm, .pgm) picture",
          kind ? kind->name + ", " : "");
}

void check_size(const Header& header, const std::string& name, std::int64_t max_pixels) {
  const auto [height, width] = std::pair(header.height, header.width);
  if (width < 1 || height < 1) {
    fail_at(name, 0, "invalid image size: {} x {} pixels", width, height);
  }
  if (height <= max_pixels / width) return;
  fail_at(
      name, 0,
      "an image of {} x {} pixels, more than data.max_pixels ({}); raise it or shrink the image",
      width, height, max_pixels);
}

/// Composites one channel over an opaque background, like Pillow's alpha_composite.
std::uint8_t blend(int value, int alpha, int background) {
  const int sum = 128 * (value * alpha + background * (255 - alpha)) + 128 * 128;
  return static_cast<std::uint8_t>(((sum >> 8) + sum) >> 15);
}

/// Composites an image over the background and drops alpha, the last of its 2 or 4 channels. Gray
/// becomes RGB on a coloured background.
Image composite(const Image& image, const Colour& background) {
  const bool is_gray = background[0] == background[1] && background[1] == background[2];
  const std::int64_t colours = image.channels - 1;
  Image result{image.height, image.width, is_gray ? colours : 3, {}};
  result.pixels.resize(result.bytes());
  std::uint8_t* out = result.pixels.data();
  const std::uint8_t* end = image.pixels.data() + image.pixels.size();
  for (const std::uint8_t* pixel = image.pixels.data(); pixel != end; pixel += image.channels) {
    const int alpha = pixel[colours];
    for (std::int64_t channel = 0; channel < result.channels; ++channel) {
      const int value = pixel[colours == 1 ? 0 : channel];
      *out++ = blend(value, alpha, background[static_cast<std::size_t>(channel)]);
    }
  }
  return result;
}

/// Rotates and mirrors an image so that it is upright, given its EXIF orientation.
Image upright(Image image, int orientation) {
  if (orientation == 1) return image;
  const bool swaps = orientation >= 5;
  const bool from_bottom =
      orientation == 3 || orientation == 4 || orientation == 6 || orientation == 7;
  const bool from_right =
      orientation == 2 || orientation == 3 || orientation == 7 || orientation == 8;
  const std::int64_t down = from_bottom ? -image.width : image.width;
  const std::int64_t right = from_right ? -1 : 1;
  const std::int64_t first =
      (from_bottom ? (image.height - 1) * image.width : 0) + (from_right ? image.width - 1 : 0);
  Image result{image.height, image.width, image.channels, {}};
  if (swaps) std::swap(result.height, result.width);
  result.pixels.resize(result.bytes());
  std::uint8_t* out = result.pixels.data();
  for (std::int64_t y = 0; y < result.height; ++y) {
    for (std::int64_t x = 0; x < result.width; ++x) {
      const std::int64_t pixel = first + (swaps ? x * down + y * right : y * down + x * right);
      out = std::copy_n(image.pixels.data() + pixel * image.channels, image.channels, out);
    }
  }
  return result;
}

/// Returns the orientation in the first directory of TIFF data, the format of EXIF; nullopt if no
/// entry of it is valid. Like Pillow, accepts all types of integers but bytes.
std::optional<int> orientation_tag(Bytes tiff) {
  constexpr std::int64_t kTag = 0x0112;
  constexpr std::size_t kEntry = 12;
  // Sizes of TIFF's types by number; 0: unknown.
  constexpr std::array<std::size_t, 17> kSizes{0, 1, 1, 2, 4, 8, 1, 1, 2, 4, 8, 4, 8, 4, 0, 0, 8};
  constexpr std::array<std::size_t, 7> kIntegers{3, 4, 6, 8, 9, 13, 16};
  if (tiff.size() < 8) return std::nullopt;
  const bool big = has_text(tiff, 0, "MM");
  if (!big && !has_text(tiff, 0, "II")) return std::nullopt;
  const auto number = big ? big_endian : little_endian;
  const auto directory = static_cast<std::size_t>(number(tiff, 4, 4));
  if (directory + 2 > tiff.size()) return std::nullopt;
  const std::int64_t entries = number(tiff, directory, 2);
  std::size_t at = directory + 2;
  for (std::int64_t i = 0; i < entries && at + kEntry <= tiff.size(); ++i, at += kEntry) {
    if (number(tiff, at, 2) != kTag) continue;
    const auto type = static_cast<std::size_t>(number(tiff, at + 2, 2));
    if (type >= kSizes.size()) continue;
    const auto size = kSizes.at(type) * static_cast<std::size_t>(number(tiff, at + 4, 4));
    const auto begin = size <= 4 ? at + 8 : static_cast<std::size_t>(number(tiff, at + 8, 4));
    if (size == 0 || begin > tiff.size() || size > tiff.size() - begin) continue;
    if (std::ranges::count(kIntegers, type) == 0) return 0;
    const std::int64_t value = number(tiff, begin, kSizes.at(type));
    return value >= 1 && value <= 8 ? static_cast<int>(value) : 0;
  }
  return std::nullopt;
}

}  // namespace

std::string extension_of(std::string_view name) {
  const std::size_t dot = name.rfind('.');
  if (dot == name.npos || dot == 0) return "";
  std::string extension(name.substr(dot));
  for (char& letter : extension) {
    if (letter >= 'A' && letter <= 'Z') letter = static_cast<char>(letter - 'A' + 'a');
  }
  return extension;
}

bool has_picture_extension(std::string_view name) {
  const std::string extension = extension_of(name);
  const std::string all = std::string(kPictureExtensions) + ",";
  return !extension.empty() && all.find(extension + ",") != all.npos;
}

std::string conversion_advice(const std::string& name) {
  std::string advice = "convert it to PNG";
  if (name.find(": ") != name.npos) return advice;
  const std::string file = shell_word((name.starts_with("-") ? "./" : "") + name);
  const bool stays = has_picture_extension(name) && extension_of(name) != ".png";
  return advice + ": " + kConvertToPng + file + (stays ? " && rm " + file : "");
}

std::string conversion_hint(std::string_view extension, std::int64_t count) {
  constexpr std::array kExtensions{".gif", ".tif", ".tiff", ".heic", ".heif", ".avif", ".jxl",
                                   ".jp2", ".j2k", ".psd",  ".ico",  ".pbm",  ".pam",  ".tga"};
  if (std::ranges::count(kExtensions, extension_of(fmt::format("*{}", extension))) == 0) return "";
  return fmt::format(" (convert {} folder: {}*{})", count == 1 ? "it in its" : "them in their",
                     kConvertToPng, extension);
}

std::int64_t big_endian(Bytes bytes, std::size_t offset, std::size_t size) {
  std::int64_t value = 0;
  for (const std::uint8_t byte : bytes.subspan(offset, size)) value = value << 8 | byte;
  return value;
}

std::int64_t little_endian(Bytes bytes, std::size_t offset, std::size_t size) {
  std::int64_t value = 0;
  for (std::size_t i = size; i-- > 0;) value = value << 8 | bytes[offset + i];
  return value;
}

bool has_text(Bytes bytes, std::size_t offset, std::string_view text) {
  return offset <= bytes.size() && text_of(bytes.subspan(offset)).starts_with(text);
}

void Orientation::add_exif(Bytes exif) {
  constexpr std::string_view kPrefix{"Exif\0\0", 6};
  while (has_text(exif, 0, kPrefix)) exif = exif.subspan(kPrefix.size());
  if (!exif_) exif_ = orientation_tag(exif);
}

void Orientation::add_xmp(std::string_view xmp) {
  constexpr std::string_view kTag = "tiff:Orientation";
  for (std::size_t at = xmp.find(kTag); at != xmp.npos; at = xmp.find(kTag, at + 1)) {
    std::string_view rest = xmp.substr(at + kTag.size());
    for (const std::string_view sign : {"=\"", ">"}) {
      if (!rest.starts_with(sign) || rest.size() == sign.size()) continue;
      const char digit = rest[sign.size()];
      if (digit < '0' || digit > '9') continue;
      xmp_ = digit - '0';
      return;
    }
  }
}

int Orientation::value() const {
  const int value = exif_.value_or(xmp_.value_or(1));
  return value >= 1 && value <= 8 ? value : 1;
}

Header read_header(Bytes bytes, const std::string& name, std::int64_t max_pixels) {
  if (bytes.empty()) fail_at(name, 0, "an empty file instead of an image");
  for (const Codec* codec : kCodecs) {
    if (!codec->recognises(bytes)) continue;
    const Header header = codec->read(bytes, name);
    check_size(header, name, max_pixels);
    return header;
  }
  refuse_format(bytes, name);
}

Image decode(Bytes bytes, const std::string& name, const DecodeOptions& options) {
  const Header header = read_header(bytes, name, options.max_pixels);
  Image image = kCodecs.at(static_cast<std::size_t>(header.format))->decode(bytes, header, name);
  if (image.channels % 2 == 0) image = composite(image, options.background);
  return upright(std::move(image), header.orientation);
}

}  // namespace mnist_train::imaging
