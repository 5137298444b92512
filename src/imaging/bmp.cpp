#include <algorithm>
#include <cstdlib>
#include <wuffs-v0.3.c>  // NOLINT(bugprone-suspicious-include): Wuffs is released as one such file

#include "imaging/formats.h"

namespace mnist_train::imaging {

namespace {

constexpr std::size_t kPixelOffset = 10;  // offset of the offset of the pixels
constexpr std::size_t kInfo = 14;         // offset of the info header
constexpr std::size_t kOldInfo = 12;      // size of the OS/2 header, with 16-bit dimensions
constexpr std::size_t kPaletteBytes = WUFFS_BASE__PIXEL_FORMAT__INDEXED__PALETTE_BYTE_LENGTH;
constexpr std::size_t kPaletteEntry = 4;  // blue, green, red, alpha

bool is_old(Bytes bytes) { return little_endian(bytes, kInfo, 4) == kOldInfo; }

/// Returns whether bit masks define the colours.
bool has_masks(Bytes bytes) {
  constexpr std::int64_t kBitFields = 3;
  return !is_old(bytes) && little_endian(bytes, kInfo + 16, 4) == kBitFields;
}

std::int64_t bits_per_pixel(Bytes bytes) {
  return little_endian(bytes, kInfo + (is_old(bytes) ? 10 : 14), 2);
}

/// Returns the number of palette colours, as Pillow counts them.
std::size_t colours_of(Bytes bytes) {
  const std::int64_t stated = is_old(bytes) ? 0 : little_endian(bytes, kInfo + 32, 4);
  return static_cast<std::size_t>(stated > 0 ? std::min<std::int64_t>(stated, 256)
                                             : std::int64_t{1} << bits_per_pixel(bytes));
}

/// Decodes to a Wuffs pixel format. Returns the palette, if any, followed by the pixel bytes.
std::vector<std::uint8_t> decode_to(std::uint32_t format, std::size_t bytes_per_pixel, Bytes bytes,
                                    const Header& header, const std::string& name) {
  const auto require = [&](const wuffs_base__status& status) {
    if (!status.is_ok()) fail_at(name, 0, "corrupt BMP image: {}", status.message());
  };
  const auto decoder = wuffs_bmp__decoder::alloc();
  if (!decoder) throw std::bad_alloc();
  auto source = wuffs_base__ptr_u8__reader(const_cast<std::uint8_t*>(bytes.data()), bytes.size(),
                                           /*closed=*/true);  // Wuffs only reads it
  wuffs_base__image_config config = wuffs_base__null_image_config();
  require(decoder->decode_image_config(&config, &source));
  if (config.pixcfg.width() != header.width || config.pixcfg.height() != header.height) {
    fail_at(name, kInfo, "a BMP image whose size differs from its header");
  }
  config.pixcfg.set(format, WUFFS_BASE__PIXEL_SUBSAMPLING__NONE, config.pixcfg.width(),
                    config.pixcfg.height());
  const auto pixels = static_cast<std::size_t>(header.height * header.width);
  std::vector<std::uint8_t> memory(pixels * bytes_per_pixel +
                                   (bytes_per_pixel == 1 ? kPaletteBytes : 0));
  wuffs_base__pixel_buffer buffer = wuffs_base__null_pixel_buffer();
  require(buffer.set_from_slice(&config.pixcfg,
                                wuffs_base__make_slice_u8(memory.data(), memory.size())));
  require(decoder->decode_frame(&buffer, &source, WUFFS_BASE__PIXEL_BLEND__SRC,
                                wuffs_base__empty_slice_u8(), nullptr));
  return memory;
}

/// Returns whether the palette is a gray ramp or black and white, so that Pillow reads gray.
bool is_gray_ramp(const std::vector<std::uint8_t>& palette, std::size_t colours) {
  for (std::size_t index = 0; index < colours; ++index) {
    const std::size_t gray = colours == 2 ? 255 * index : index;
    for (std::size_t part = 0; part < 3; ++part) {
      if (palette[index * kPaletteEntry + part] != gray) return false;
    }
  }
  return true;
}

Image decode_indexed(Bytes bytes, const Header& header, const std::string& name) {
  const std::size_t colours = colours_of(bytes);
  // Like Pillow, tolerates files whose stated offset of the pixels is that of the palette.
  std::vector<std::uint8_t> corrected;
  const auto palette = kInfo + static_cast<std::size_t>(little_endian(bytes, kInfo, 4));
  if (static_cast<std::size_t>(little_endian(bytes, kPixelOffset, 4)) == palette) {
    corrected.assign(bytes.begin(), bytes.end());
    const auto pixels = palette + colours * (is_old(bytes) ? 3 : kPaletteEntry);
    for (std::size_t i = 0; i < 4; ++i) {
      corrected[kPixelOffset + i] = static_cast<std::uint8_t>(pixels >> (8 * i));
    }
    bytes = corrected;
  }
  const auto indices =
      decode_to(WUFFS_BASE__PIXEL_FORMAT__INDEXED__BGRA_BINARY, 1, bytes, header, name);
  const bool gray = is_gray_ramp(indices, colours);
  Image image{header.height, header.width, gray ? 1 : 3, {}};
  image.pixels.reserve(image.bytes());
  for (std::size_t at = kPaletteBytes; at < indices.size(); ++at) {
    const std::uint8_t index = indices[at];
    if (gray) {
      image.pixels.push_back(colours == 2 ? static_cast<std::uint8_t>(255 * (index & 1)) : index);
      continue;
    }
    const std::uint8_t* colour = &indices[index * kPaletteEntry];
    image.pixels.insert(image.pixels.end(), {colour[2], colour[1], colour[0]});
  }
  return image;
}

/// Decodes colours of 5 or 6 bits, which Pillow scales by division, not by repeating bits.
Image decode_16_bits(Bytes bytes, const Header& header, const std::string& name) {
  constexpr std::size_t kPixel = 8;
  const auto wide =
      decode_to(WUFFS_BASE__PIXEL_FORMAT__BGRA_NONPREMUL_4X16LE, kPixel, bytes, header, name);
  const bool six =
      has_masks(bytes) && bytes.size() >= 62 && little_endian(bytes, kInfo + 44, 4) == 0x7E0;
  const std::array<int, 3> max_value{31, six ? 63 : 31, 31};
  Image image{header.height, header.width, 3, {}};
  image.pixels.reserve(image.bytes());
  for (std::size_t at = 0; at < wide.size(); at += kPixel) {
    for (std::size_t part = 0; part < 3; ++part) {
      const auto value = static_cast<int>(little_endian(wide, at + 2 * (2 - part), 2));
      const int levels = max_value.at(part) + 1;
      image.pixels.push_back(
          static_cast<std::uint8_t>(value * levels / 65536 * 255 / max_value.at(part)));
    }
  }
  return image;
}

Header read_bmp(Bytes bytes, const std::string& name) {
  constexpr std::size_t kHeaderEnd = kInfo + 40;
  const bool old = bytes.size() >= kInfo + kOldInfo && is_old(bytes);
  if (!old && bytes.size() < kHeaderEnd) fail_at(name, bytes.size(), "ends inside the BMP header");
  if (old) {
    return {Format::kBmp, little_endian(bytes, kInfo + 6, 2), little_endian(bytes, kInfo + 4, 2),
            3};
  }
  const auto height = static_cast<std::int32_t>(little_endian(bytes, kInfo + 8, 4));
  const auto width = static_cast<std::int32_t>(little_endian(bytes, kInfo + 4, 4));
  return {Format::kBmp, std::abs(std::int64_t{height}), width, 3};
}

Image decode_bmp(Bytes bytes, const Header& header, const std::string& name) {
  const std::int64_t bits = bits_per_pixel(bytes);
  if (bits <= 8) return decode_indexed(bytes, header, name);
  if (bits == 16) return decode_16_bits(bytes, header, name);
  // Without an alpha mask, the fourth byte of a pixel is unused.
  const bool has_alpha = bits == 32 && has_masks(bytes) && little_endian(bytes, kInfo, 4) >= 56 &&
                         bytes.size() >= kInfo + 56 && little_endian(bytes, kInfo + 52, 4) != 0;
  Image image{header.height, header.width, 4, {}};
  image.pixels = decode_to(WUFFS_BASE__PIXEL_FORMAT__RGBA_NONPREMUL, 4, bytes, header, name);
  if (has_alpha) return image;
  std::uint8_t* out = image.pixels.data();
  for (std::size_t at = 0; at < image.pixels.size(); at += 4) {
    out = std::copy_n(image.pixels.data() + at, 3, out);
  }
  image.channels = 3;
  image.pixels.resize(image.bytes());
  return image;
}

}  // namespace

const Codec kBmp{[](Bytes bytes) { return has_text(bytes, 0, "BM"); }, read_bmp, decode_bmp};

}  // namespace mnist_train::imaging
