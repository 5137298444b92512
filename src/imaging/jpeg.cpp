// jpeglib.h uses FILE and size_t without including them.
// clang-format off
#include <cstddef>
#include <cstdio>
#include <jpeglib.h>
#include <jerror.h>
// clang-format on

#include <algorithm>
#include <array>
#include <csetjmp>
#include <cstdlib>
#include <memory>

#include "base/error.h"
#include "imaging/codec.h"

namespace mnist_train::imaging {

namespace {

constexpr int kMostScans = 500;  // a few bytes a scan, each costing a pass over the whole image

/// libjpeg reports errors by functions that must not return; they jump back to who called it.
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

/// Data that end early are an error here: libjpeg would fill up with gray.
void heed_warning(j_common_ptr codec, int level) {
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
  errors.functions.emit_message = heed_warning;
  errors.functions.output_message = [](j_common_ptr) {};
}

struct Decoding {
  jpeg_decompress_struct decoder{};
  jpeg_progress_mgr progress{};
  ErrorManager errors{};
  std::size_t left = 0;  // bytes not yet read when it failed
};

// What setjmp returns to must not hold objects with destructors: these functions use plain data of
// their callers alone.

bool decode_into(Decoding& state, std::span<const std::uint8_t> bytes, const Image& shape,
                 std::uint8_t* pixels) {
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
    // libjpeg wants a pointer to what it does not write.
    auto* row = const_cast<JSAMPROW>(image.pixels.data() + encoder.next_scanline * row_bytes);
    jpeg_write_scanlines(&encoder, &row, 1);
  }
  jpeg_finish_compress(&encoder);
  jpeg_destroy_compress(&encoder);
  return true;
}

}  // namespace

Image decode_jpeg(std::span<const std::uint8_t> bytes, const Header& header,
                  const std::string& name) {
  if (header.components != 1 && header.components != 3) {
    fail_at(name, 0,
            "a JPEG image of " + std::to_string(header.components) +
                " colour components (CMYK?); gray and RGB are read");
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
