// jpeglib.h uses FILE and size_t without including their headers.
// clang-format off
#include <cstddef>
#include <cstdio>
#include <jpeglib.h>
#include <jerror.h>
// clang-format on

#include <algorithm>
#include <csetjmp>
#include <cstdlib>
#include <memory>

#include "imaging/formats.h"

namespace mnist_train::imaging {

namespace {

/// SOF0 to SOF15, except for three markers with other meanings.
bool is_frame_header(std::uint8_t marker) {
  return marker >= 0xC0 && marker <= 0xCF && marker != 0xC4 && marker != 0xC8 && marker != 0xCC;
}

/// libjpeg reports errors through functions that must not return: they jump back to the caller.
struct ErrorManager {
  jpeg_error_mgr functions;  // must be first: its address is cast to ErrorManager
  std::jmp_buf back;
  std::array<char, JMSG_LENGTH_MAX> message;
};

void jump_back(j_common_ptr codec) {
  auto* errors = reinterpret_cast<ErrorManager*>(codec->err);
  codec->err->format_message(codec, errors->message.data());
  std::longjmp(errors->back, 1);
}

[[noreturn]] void fail_with(ErrorManager& errors, const char* reason) {
  std::snprintf(errors.message.data(), errors.message.size(), "%s", reason);
  std::longjmp(errors.back, 1);
}

/// Treats truncated data as an error; libjpeg would fill the rest with gray.
void refuse_truncation(j_common_ptr codec, int level) {
  const int code = codec->err->msg_code;
  if (level < 0 && (code == JWRN_JPEG_EOF || code == JWRN_HIT_MARKER)) jump_back(codec);
}

/// Limits the number of scans: a few bytes can request a pass over the whole image.
void limit_scans(j_common_ptr codec) {
  const auto* decoder = reinterpret_cast<jpeg_decompress_struct*>(codec);
  if (decoder->input_scan_number <= 500) return;
  fail_with(*reinterpret_cast<ErrorManager*>(codec->err), "more than 500 scans");
}

jpeg_error_mgr* prepared(ErrorManager& errors) {
  jpeg_std_error(&errors.functions);
  errors.functions.error_exit = jump_back;
  errors.functions.emit_message = refuse_truncation;
  errors.functions.output_message = [](j_common_ptr) {};
  return &errors.functions;
}

struct Decoding {
  jpeg_decompress_struct decoder{};
  jpeg_progress_mgr progress{};
  ErrorManager errors{};
  std::size_t unread_bytes = 0;  // at the time of failure
};

// A function that setjmp returns to must not contain objects with destructors, so decode_into and
// encode_into use only plain data that their callers own.

bool decode_into(Decoding& state, Bytes bytes, const Image& shape, std::uint8_t* pixels) {
  jpeg_decompress_struct& decoder = state.decoder;
  if (setjmp(state.errors.back) != 0) {
    state.unread_bytes = decoder.src != nullptr ? decoder.src->bytes_in_buffer : 0;
    jpeg_destroy_decompress(&decoder);
    return false;
  }
  jpeg_create_decompress(&decoder);
  decoder.progress = &state.progress;
  jpeg_mem_src(&decoder, bytes.data(), bytes.size());
  jpeg_read_header(&decoder, TRUE);
  decoder.out_color_space = shape.channels == 1   ? JCS_GRAYSCALE
                            : shape.channels == 3 ? JCS_RGB
                                                  : JCS_CMYK;
  if (decoder.image_height != shape.height || decoder.image_width != shape.width) {
    fail_with(state.errors, "its headers give different image sizes");
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
    // libjpeg's interface is not const-correct.
    auto* row = const_cast<JSAMPROW>(image.pixels.data() + encoder.next_scanline * row_bytes);
    jpeg_write_scanlines(&encoder, &row, 1);
  }
  jpeg_finish_compress(&encoder);
  jpeg_destroy_compress(&encoder);
  return true;
}

/// Converts inverted CMYK, as written by Adobe's programs, to RGB like Pillow.
void to_rgb(Image& cmyk) {
  std::uint8_t* out = cmyk.pixels.data();
  for (std::size_t at = 0; at < cmyk.pixels.size(); at += 4) {
    const int key = cmyk.pixels[at + 3];
    for (std::size_t ink = 0; ink < 3; ++ink) {
      const int product = (255 - cmyk.pixels[at + ink]) * key + 128;
      *out++ = static_cast<std::uint8_t>(key - ((product >> 8) + product) / 256);
    }
  }
  cmyk.channels = 3;
  cmyk.pixels.resize(cmyk.bytes());
}

Header read_jpeg(Bytes bytes, const std::string& name) {
  constexpr std::string_view kExif{"Exif\0\0", 6};
  constexpr std::string_view kXmp{"http://ns.adobe.com/xap/1.0/\0", 29};
  Header header{Format::kJpeg, 0, 0, 0};
  Orientation orientation;
  std::size_t at = 2;
  while (at + 4 <= bytes.size()) {
    const std::uint8_t marker = bytes[at + 1];
    if (bytes[at] != 0xFF || marker == 0xFF || marker == 0x00) {  // stray bytes and fill bytes
      ++at;
      continue;
    }
    if (marker == 0x01 || (marker >= 0xD0 && marker <= 0xD8)) {  // markers without length or data
      at += 2;
      continue;
    }
    if (marker == 0xD9 || marker == 0xDA) break;
    const auto length = static_cast<std::size_t>(big_endian(bytes, at + 2, 2));
    if (length < 2) fail_at(name, at + 2, "invalid JPEG segment length {}", length);
    if (is_frame_header(marker) && header.components == 0) {
      if (length < 8 || at + 10 > bytes.size())
        fail_at(name, at, "the JPEG frame header is truncated");
      header.height = big_endian(bytes, at + 5, 2);
      header.width = big_endian(bytes, at + 7, 2);
      header.components = bytes[at + 9];
    }
    const Bytes content = bytes.subspan(at + 4, std::min(length - 2, bytes.size() - at - 4));
    if (marker == 0xE1 && has_text(content, 0, kExif)) orientation.add_exif(content);
    if (marker == 0xE1 && has_text(content, 0, kXmp)) orientation.add_xmp(text_of(content));
    at += 2 + length;
  }
  if (header.components == 0)
    fail_at(name, std::min(at, bytes.size()), "the JPEG has no frame header");
  header.orientation = orientation.value();
  header.is_plain = header.components <= 3 && header.orientation == 1;
  return header;
}

Image decode_jpeg(Bytes bytes, const Header& header, const std::string& name) {
  if (header.components != 1 && header.components != 3 && header.components != 4) {
    fail_at(name, 0, "the JPEG has {} colour components; only gray, RGB and CMYK are supported",
            header.components);
  }
  Image image{header.height, header.width, header.components, {}};
  image.pixels.resize(image.bytes());
  const auto state = std::make_unique<Decoding>();
  state->decoder.err = prepared(state->errors);
  state->progress.progress_monitor = limit_scans;
  if (!decode_into(*state, bytes, image, image.pixels.data())) {
    const std::size_t offset = bytes.size() - std::min(state->unread_bytes, bytes.size());
    fail_at(name, offset, "corrupt JPEG image: {}", state->errors.message.data());
  }
  if (image.channels == 4) to_rgb(image);
  return image;
}

}  // namespace

const Codec kJpeg{[](Bytes bytes) { return has_text(bytes, 0, "\xFF\xD8\xFF"); }, read_jpeg,
                  decode_jpeg};

std::string encode_jpeg(const Image& image, int quality) {
  const auto state = std::make_unique<Encoding>();
  state->encoder.err = prepared(state->errors);
  const bool done = encode_into(*state, image, quality);
  const std::unique_ptr<unsigned char, decltype(&std::free)> owner(state->bytes, &std::free);
  if (!done) {
    throw Error(ExitCode::kRunFailed,
                std::string("cannot encode a JPEG image: ") + state->errors.message.data());
  }
  return {reinterpret_cast<const char*>(state->bytes), state->size};
}

}  // namespace mnist_train::imaging
