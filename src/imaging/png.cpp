#include <png.h>
#include <zlib.h>

#include <algorithm>
#include <charconv>
#include <csetjmp>
#include <cstring>

#include "imaging/formats.h"

namespace mnist_train::imaging {

namespace {

constexpr std::size_t kPngHeaderEnd = 33;  // signature, length, type, 13 bytes, checksum

/// Returns the text after the first `end`, or "".
std::string_view after(std::string_view text, char end) {
  const std::size_t at = text.find(end);
  return at == text.npos ? "" : text.substr(at + 1);
}

/// Returns the text of a chunk if it is a text chunk with this keyword.
std::optional<std::string> text_in(std::string_view type, std::string_view content,
                                   std::string_view keyword) {
  constexpr uLongf kMaxText = 1 << 20;  // as in Pillow
  if (type != "tEXt" && type != "zTXt" && type != "iTXt") return std::nullopt;
  if (content.substr(0, content.find('\0')) != keyword) return std::nullopt;
  content = after(content, '\0');
  const bool is_compressed = type == "zTXt" || (type == "iTXt" && !content.starts_with('\0'));
  const std::size_t flags = type == "tEXt" ? 0 : type == "zTXt" ? 1 : 2;
  content = content.substr(std::min(flags, content.size()));
  if (type == "iTXt") content = after(after(content, '\0'), '\0');  // language and keyword
  if (!is_compressed) return std::string(content);
  std::string text(kMaxText, '\0');
  uLongf size = kMaxText;
  const int result = ::uncompress(reinterpret_cast<Bytef*>(text.data()), &size,
                                  reinterpret_cast<const Bytef*>(content.data()), content.size());
  text.resize(result == Z_OK ? size : 0);
  return text;
}

/// Decodes a raw profile, which has hexadecimal digits after three lines; empty if it is invalid.
std::vector<std::uint8_t> parse_profile(std::string_view text) {
  std::string digits(after(after(after(text, '\n'), '\n'), '\n'));
  std::erase_if(digits, [](char each) { return each == ' ' || each == '\n' || each == '\r'; });
  std::vector<std::uint8_t> bytes;
  for (std::size_t at = 0; at + 1 < digits.size(); at += 2) {
    unsigned byte = 0;
    const char* end = &digits[at] + 2;
    if (std::from_chars(&digits[at], end, byte, 16).ptr != end) return {};
    bytes.push_back(static_cast<std::uint8_t>(byte));
  }
  return bytes;
}

/// Reads the orientation and the exceptions to `is_plain` from the chunks after the header.
void read_chunks(Bytes bytes, Header& header) {
  constexpr std::size_t kOverhead = 12;  // length, type, checksum
  Orientation orientation;
  bool has_exif = false;
  std::vector<std::uint8_t> profile;  // EXIF data in a text chunk; eXIf has priority
  for (std::size_t at = kPngHeaderEnd; at + kOverhead <= bytes.size();) {
    const auto length = static_cast<std::size_t>(big_endian(bytes, at, 4));
    if (length > bytes.size() - at - kOverhead) break;
    const std::string_view type = text_of(bytes.subspan(at + 4, 4));
    const Bytes content = bytes.subspan(at + 8, length);
    const auto text = [&](const char* keyword) { return text_in(type, text_of(content), keyword); };
    if (type == "tRNS" || type == "gAMA") header.is_plain = false;
    if (type == "eXIf") orientation.add_exif(content);
    has_exif = has_exif || type == "eXIf";
    if (const auto xmp = text("XML:com.adobe.xmp")) orientation.add_xmp(*xmp);
    if (const auto exif = text("Raw profile type exif")) profile = parse_profile(*exif);
    at += kOverhead + length;
  }
  if (!has_exif) orientation.add_exif(profile);
  header.orientation = orientation.value();
  if (header.orientation != 1) header.is_plain = false;
}

/// libpng reports errors through functions that must not return: they jump back to the caller.
struct PngReader {
  explicit PngReader(Bytes file) : bytes(file) {}
  PngReader(const PngReader&) = delete;
  PngReader& operator=(const PngReader&) = delete;
  ~PngReader() { png_destroy_read_struct(&png, &info, nullptr); }

  Bytes bytes;  // the unread part
  png_structp png = nullptr;
  png_infop info = nullptr;
  std::jmp_buf back{};
  std::array<char, 128> message{};
};

[[noreturn]] void leave_png(png_structp png, png_const_charp message) {
  auto* reader = static_cast<PngReader*>(png_get_error_ptr(png));
  std::strncpy(reader->message.data(), message, reader->message.size() - 1);
  std::longjmp(reader->back, 1);
}

void read_png_bytes(png_structp png, png_bytep out, std::size_t count) {
  auto* reader = static_cast<PngReader*>(png_get_io_ptr(png));
  if (count > reader->bytes.size()) png_error(png, "the file is truncated");
  std::memcpy(out, reader->bytes.data(), count);
  reader->bytes = reader->bytes.subspan(count);
}

// Functions that setjmp returns to must not contain objects with destructors.

/// Reads everything before the pixels and requests 8-bit pixels without a palette. Like Pillow,
/// ignores gamma and colour profiles.
bool start_png(PngReader& reader) {
  if (setjmp(reader.back) != 0) return false;
  reader.png = png_create_read_struct(PNG_LIBPNG_VER_STRING, &reader, leave_png,
                                      [](png_structp, png_const_charp) {});
  if (reader.png == nullptr) return false;
  reader.info = png_create_info_struct(reader.png);
  png_set_read_fn(reader.png, &reader, read_png_bytes);
  png_set_keep_unknown_chunks(reader.png, PNG_HANDLE_CHUNK_NEVER, nullptr, -1);
  png_set_user_limits(reader.png, PNG_UINT_31_MAX, PNG_UINT_31_MAX);
#ifdef PNG_IGNORE_ADLER32  // libpng may be built without it
  // Chunks have their own checksums.
  png_set_option(reader.png, PNG_IGNORE_ADLER32, PNG_OPTION_ON);
#endif
  png_read_info(reader.png, reader.info);
  png_set_expand(reader.png);
  png_set_strip_16(reader.png);
  png_set_interlace_handling(reader.png);
  png_read_update_info(reader.png, reader.info);
  return true;
}

bool read_png_rows(PngReader& reader, std::vector<png_bytep>& rows) {
  if (setjmp(reader.back) != 0) return false;
  png_read_image(reader.png, rows.data());
  return true;
}

Header read_png(Bytes bytes, const std::string& name) {
  constexpr std::size_t kChunk = 8;
  if (bytes.size() < kPngHeaderEnd) fail_at(name, bytes.size(), "ends inside the PNG header");
  if (big_endian(bytes, kChunk, 4) != 13 || !has_text(bytes, kChunk + 4, "IHDR")) {
    fail_at(name, kChunk, "the first PNG chunk is not IHDR");
  }
  constexpr std::size_t kDepth = 24;
  constexpr std::size_t kColourType = 25;
  Header header{Format::kPng, big_endian(bytes, 20, 4), big_endian(bytes, 16, 4), 0};
  constexpr std::array kComponents{1, 0, 3, 3, 2, 0, 4};  // by colour type; 0: no such type
  const std::uint8_t type = bytes[kColourType];
  if (type < kComponents.size()) header.components = kComponents[type];
  if (header.components == 0) {
    fail_at(name, kColourType, "unknown PNG colour type {}", type);
  }
  header.is_plain = header.components % 2 == 1 && bytes[kDepth] <= 8;
  read_chunks(bytes, header);
  return header;
}

Image decode_png(Bytes bytes, const Header& header, const std::string& name) {
  PngReader reader(bytes);
  const auto fail = [&] {
    throw Error(ExitCode::kData, name + ": corrupt PNG image: " + reader.message.data());
  };
  if (!start_png(reader)) fail();
  Image image{header.height, header.width, png_get_channels(reader.png, reader.info), {}};
  if (png_get_image_width(reader.png, reader.info) != header.width ||
      png_get_image_height(reader.png, reader.info) != header.height) {
    fail_at(name, 16, "a PNG image whose size differs from its header");
  }
  image.pixels.resize(image.bytes());
  const std::size_t row_bytes = image.pixels.size() / static_cast<std::size_t>(image.height);
  std::vector<png_bytep> rows(static_cast<std::size_t>(image.height));
  for (std::size_t row = 0; row < rows.size(); ++row) {
    rows[row] = image.pixels.data() + row * row_bytes;
  }
  if (!read_png_rows(reader, rows)) fail();
  return image;
}

}  // namespace

const Codec kPng{[](Bytes bytes) { return has_text(bytes, 0, "\x89PNG\r\n\x1A\n"); }, read_png,
                 decode_png};

std::string encode_png(const Image& image) {
  png_image png{};
  png.version = PNG_IMAGE_VERSION;
  png.width = static_cast<png_uint_32>(image.width);
  png.height = static_cast<png_uint_32>(image.height);
  png.format = image.channels == 3 ? PNG_FORMAT_RGB : PNG_FORMAT_GRAY;
  std::string bytes(PNG_IMAGE_PNG_SIZE_MAX(png), '\0');
  png_alloc_size_t size = bytes.size();
  // This API reports failures in its return value instead of using longjmp, and frees its memory.
  if (png_image_write_to_memory(&png, bytes.data(), &size, 0, image.pixels.data(), 0, nullptr) ==
      0) {
    throw Error(ExitCode::kRunFailed, std::string("cannot encode a PNG image: ") + png.message);
  }
  bytes.resize(size);
  return bytes;
}

}  // namespace mnist_train::imaging
