#include "imaging/codec.h"

// jpeglib.h uses FILE and size_t without including them.
// clang-format off
#include <cstddef>
#include <cstdio>
#include <jpeglib.h>
#include <jerror.h>
// clang-format on
#include <png.h>

#include <algorithm>
#include <array>
#include <csetjmp>
#include <cstdlib>
#include <memory>
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

/// SOF0 to SOF15, except for three numbers with other meanings.
bool is_frame_header(std::uint8_t marker) {
  return marker >= 0xC0 && marker <= 0xCF && marker != 0xC4 && marker != 0xC8 && marker != 0xCC;
}

/// Markers without a length and data.
bool is_without_length(std::uint8_t marker) {
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
    if (is_without_length(marker)) {
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

/// libpng's simplified interface, which returns failures instead of jumping out of its functions.
struct PngImage : png_image {
  PngImage() : png_image{} { version = PNG_IMAGE_VERSION; }
  PngImage(const PngImage&) = delete;
  PngImage& operator=(const PngImage&) = delete;
  ~PngImage() { png_image_free(this); }
};

[[noreturn]] void fail_png(const std::string& name, const png_image& image) {
  throw Error(ExitCode::kData, name + ": a broken PNG image: " + image.message);
}

/// Removes the alpha channel, the last one.
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

Image decode_png(Bytes bytes, const Header& header, const std::string& name,
                 Transparency transparency) {
  PngImage png;
  if (png_image_begin_read_from_memory(&png, bytes.data(), bytes.size()) == 0) fail_png(name, png);
  if (png.width != header.width || png.height != header.height) {
    fail_at(name, 16, "a PNG image whose size differs from its header");
  }
  png.flags |= PNG_IMAGE_FLAG_16BIT_sRGB;  // like 8 bits, not linear light
  const bool alpha = (png.format & PNG_FORMAT_FLAG_ALPHA) != 0;
  png.format &= PNG_FORMAT_FLAG_COLOR | PNG_FORMAT_FLAG_ALPHA;  // 8 bits, no palette
  Image image{header.height, header.width, (png.format & PNG_FORMAT_FLAG_COLOR) != 0 ? 3 : 1, {}};
  image.pixels.resize(PNG_IMAGE_SIZE(png));
  if (png_image_finish_read(&png, nullptr, image.pixels.data(), 0, nullptr) == 0) {
    fail_png(name, png);
  }
  if (alpha) remove_alpha(image, transparency);
  return image;
}

constexpr int kMostScans = 500;  // a scan takes few bytes, but a pass over the whole image

/// libjpeg reports errors through functions that must not return: they jump back to the caller.
struct ErrorManager {
  jpeg_error_mgr functions;  // the first member: libjpeg knows this object by it
  std::jmp_buf back;
  std::array<char, JMSG_LENGTH_MAX> message;
};

void leave(j_common_ptr codec) {
  auto* errors = reinterpret_cast<ErrorManager*>(codec->err);
  codec->err->format_message(codec, errors->message.data());
  std::longjmp(errors->back, 1);
}

/// Truncated data are an error here: libjpeg would fill the rest with gray.
void refuse_truncation(j_common_ptr codec, int level) {
  const int code = codec->err->msg_code;
  if (level < 0 && (code == JWRN_JPEG_EOF || code == JWRN_HIT_MARKER)) leave(codec);
}

void limit_scans(j_common_ptr codec) {
  const auto* decoder = reinterpret_cast<jpeg_decompress_struct*>(codec);
  if (decoder->input_scan_number <= kMostScans) return;
  auto* errors = reinterpret_cast<ErrorManager*>(codec->err);
  std::snprintf(errors->message.data(), errors->message.size(), "more than %d scans", kMostScans);
  std::longjmp(errors->back, 1);
}

void prepare(ErrorManager& errors) {
  jpeg_std_error(&errors.functions);
  errors.functions.error_exit = leave;
  errors.functions.emit_message = refuse_truncation;
  errors.functions.output_message = [](j_common_ptr) {};
}

struct Decoding {
  jpeg_decompress_struct decoder{};
  jpeg_progress_mgr progress{};
  ErrorManager errors{};
  std::size_t left = 0;  // unread bytes when it failed
};

// A function that setjmp returns to must not have objects with destructors: these two only use
// plain data of their callers.

bool decode_into(Decoding& state, Bytes bytes, const Image& shape, std::uint8_t* pixels) {
  jpeg_decompress_struct& decoder = state.decoder;
  if (setjmp(state.errors.back) != 0) {
    state.left = decoder.src != nullptr ? decoder.src->bytes_in_buffer : 0;
    jpeg_destroy_decompress(&decoder);
    return false;
  }
  jpeg_create_decompress(&decoder);
  decoder.progress = &state.progress;
  jpeg_mem_src(&decoder, bytes.data(), bytes.size());
  jpeg_read_header(&decoder, TRUE);
  decoder.out_color_space = shape.channels == 1 ? JCS_GRAYSCALE : JCS_RGB;
  if (decoder.image_height != shape.height || decoder.image_width != shape.width) {
    ERREXIT(&decoder, JERR_IMAGE_TOO_BIG);
  }
  jpeg_start_decompress(&decoder);
  const auto row_bytes = static_cast<std::size_t>(shape.width * shape.channels);
  while (decoder.output_scanline < decoder.output_height) {
    JSAMPROW row = pixels + decoder.output_scanline * row_bytes;
    jpeg_read_scanlines(&decoder, &row, 1);
  }
  jpeg_finish_decompress(&decoder);
  jpeg_destroy_decompress(&decoder);
  return true;
}

struct Encoding {
  jpeg_compress_struct encoder{};
  ErrorManager errors{};
  unsigned char* bytes = nullptr;
  unsigned long size = 0;
};

bool encode_into(Encoding& state, const Image& image, int quality) {
  jpeg_compress_struct& encoder = state.encoder;
  if (setjmp(state.errors.back) != 0) {
    jpeg_destroy_compress(&encoder);
    return false;
  }
  jpeg_create_compress(&encoder);
  jpeg_mem_dest(&encoder, &state.bytes, &state.size);
  encoder.image_width = static_cast<JDIMENSION>(image.width);
  encoder.image_height = static_cast<JDIMENSION>(image.height);
  encoder.input_components = static_cast<int>(image.channels);
  encoder.in_color_space = image.channels == 1 ? JCS_GRAYSCALE : JCS_RGB;
  jpeg_set_defaults(&encoder);
  jpeg_set_quality(&encoder, quality, TRUE);
  if (quality >= 90) encoder.comp_info[0].h_samp_factor = encoder.comp_info[0].v_samp_factor = 1;
  jpeg_start_compress(&encoder, TRUE);
  const auto row_bytes = static_cast<std::size_t>(image.width * image.channels);
  while (encoder.next_scanline < encoder.image_height) {
    // libjpeg's interface lacks const.
    auto* row = const_cast<JSAMPROW>(image.pixels.data() + encoder.next_scanline * row_bytes);
    jpeg_write_scanlines(&encoder, &row, 1);
  }
  jpeg_finish_compress(&encoder);
  jpeg_destroy_compress(&encoder);
  return true;
}

Image decode_jpeg(Bytes bytes, const Header& header, const std::string& name) {
  if (header.components != 1 && header.components != 3) {
    fail_at(name, 0,
            "a JPEG image of " + std::to_string(header.components) +
                " colour components (CMYK?); only gray and RGB are supported");
  }
  Image image{header.height, header.width, header.components, {}};
  image.pixels.resize(image.bytes());
  const auto state = std::make_unique<Decoding>();
  prepare(state->errors);
  state->decoder.err = &state->errors.functions;
  state->progress.progress_monitor = limit_scans;
  if (!decode_into(*state, bytes, image, image.pixels.data())) {
    const std::size_t offset = bytes.size() - std::min(state->left, bytes.size());
    fail_at(name, offset, std::string("a broken JPEG image: ") + state->errors.message.data());
  }
  return image;
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

std::string encode_jpeg(const Image& image, int quality) {
  const auto state = std::make_unique<Encoding>();
  prepare(state->errors);
  state->encoder.err = &state->errors.functions;
  const bool done = encode_into(*state, image, quality);
  const std::unique_ptr<unsigned char, decltype(&std::free)> owner(state->bytes, &std::free);
  if (!done) {
    throw Error(ExitCode::kRunFailed,
                std::string("cannot encode a JPEG image: ") + state->errors.message.data());
  }
  return {reinterpret_cast<const char*>(state->bytes), state->size};
}

}  // namespace mnist_train::imaging
