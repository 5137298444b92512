#include "imaging/codec.h"

#include <algorithm>
#include <array>
#include <string_view>

#include "base/error.h"

namespace mnist_train::imaging {

namespace {

using Bytes = std::span<const std::uint8_t>;

constexpr std::array<std::uint8_t, 8> kPngSignature{0x89, 'P', 'N', 'G', '\r', '\n', 0x1A, '\n'};
constexpr std::array<std::uint8_t, 3> kJpegSignature{0xFF, 0xD8, 0xFF};

template <std::size_t size>
bool starts_with(Bytes bytes, const std::array<std::uint8_t, size>& signature) {
  return bytes.size() >= size && std::equal(signature.begin(), signature.end(), bytes.begin());
}

std::int64_t big_endian(Bytes bytes, std::size_t offset, std::size_t size) {
  std::int64_t value = 0;
  for (const std::uint8_t byte : bytes.subspan(offset, size)) value = value << 8 | byte;
  return value;
}

Header read_png(Bytes bytes, const std::string& name) {
  constexpr std::size_t kChunk = 8;
  constexpr std::size_t kHeaderEnd = 33;  // signature, length, type, 13 bytes, checksum
  if (bytes.size() < kHeaderEnd) fail_at(name, bytes.size(), "ends inside the PNG header");
  const std::string_view chunk(reinterpret_cast<const char*>(bytes.data()) + kChunk + 4, 4);
  if (big_endian(bytes, kChunk, 4) != 13 || chunk != "IHDR") {
    fail_at(name, kChunk, "the first PNG chunk is not IHDR");
  }
  constexpr std::size_t kColourType = 25;
  Header header{Format::kPng, big_endian(bytes, 20, 4), big_endian(bytes, 16, 4), 0};
  constexpr std::array kComponents{1, 0, 3, 3,
                                   2, 0, 4};  // by colour type; 0: there is no such type
  const std::uint8_t type = bytes[kColourType];
  if (type < kComponents.size()) header.components = kComponents[type];
  if (header.components == 0) {
    fail_at(name, kColourType, "unknown PNG colour type " + std::to_string(type));
  }
  return header;
}

/// SOF0 to SOF15 but for the three numbers that mean other things.
bool is_frame_header(std::uint8_t marker) {
  return marker >= 0xC0 && marker <= 0xCF && marker != 0xC4 && marker != 0xC8 && marker != 0xCC;
}

/// Markers that stand alone, without a length behind them.
bool stands_alone(std::uint8_t marker) {
  return marker == 0x01 || (marker >= 0xD0 && marker <= 0xD8);
}

Header read_jpeg(Bytes bytes, const std::string& name) {
  std::size_t at = 2;
  while (at + 4 <= bytes.size()) {
    if (bytes[at] != 0xFF) fail_at(name, at, "expected a JPEG marker");
    const std::uint8_t marker = bytes[at + 1];
    if (marker == 0xFF) {  // a fill byte
      ++at;
      continue;
    }
    if (stands_alone(marker)) {
      at += 2;
      continue;
    }
    if (marker == 0xD9 || marker == 0xDA) fail_at(name, at, "the JPEG has no frame header");
    const auto length = static_cast<std::size_t>(big_endian(bytes, at + 2, 2));
    if (length < 2) fail_at(name, at + 2, "a JPEG segment of " + std::to_string(length) + " bytes");
    if (is_frame_header(marker)) {
      if (length < 8 || at + 10 > bytes.size()) fail_at(name, at, "a cut-off JPEG frame header");
      return {Format::kJpeg, big_endian(bytes, at + 5, 2), big_endian(bytes, at + 7, 2),
              bytes[at + 9]};
    }
    at += 2 + length;
  }
  fail_at(name, bytes.size(), "ends inside the JPEG header");
}

void check_size(const Header& header, const std::string& name, const Limits& limits) {
  const std::string size = std::to_string(header.width) + " x " + std::to_string(header.height);
  if (header.width < 1 || header.height < 1) fail_at(name, 0, "an image of " + size + " pixels");
  if (header.width > limits.max_side || header.height > limits.max_side ||
      header.width * header.height > limits.max_pixels) {
    fail_at(name, 0,
            "an image of " + size + " pixels; at most " + std::to_string(limits.max_side) +
                " a side and " + std::to_string(limits.max_pixels) + " in all are accepted");
  }
}

}  // namespace

void fail_at(const std::string& name, std::size_t offset, const std::string& problem) {
  throw Error(ExitCode::kData, name + ": byte " + std::to_string(offset) + ": " + problem);
}

Header read_header(Bytes bytes, const std::string& name, const Limits& limits) {
  if (bytes.empty()) fail_at(name, 0, "an empty file instead of an image");
  const bool png = starts_with(bytes, kPngSignature);
  if (!png && !starts_with(bytes, kJpegSignature)) {
    fail_at(name, 0, "neither a PNG nor a JPEG image");
  }
  const Header header = png ? read_png(bytes, name) : read_jpeg(bytes, name);
  check_size(header, name, limits);
  return header;
}

Image decode(std::span<const std::uint8_t> bytes, const std::string& name, const Limits& limits,
             Transparency transparency) {
  const Header header = read_header(bytes, name, limits);
  return header.format == Format::kPng ? decode_png(bytes, header, name, transparency)
                                       : decode_jpeg(bytes, header, name);
}

}  // namespace mnist_train::imaging
