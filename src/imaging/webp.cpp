#include <webp/decode.h>

#include <optional>

#include "base/print.h"
#include "base/system.h"
#include "imaging/formats.h"

namespace mnist_train::imaging {

namespace {

/// Functions of libwebp, which is loaded when the first WebP picture is read.
struct WebpLibrary {
  WebpLibrary() {
    const SharedLibrary library("libwebp.so.7");
    get_features = library.find<decltype(WebPGetFeaturesInternal)>("WebPGetFeaturesInternal");
    decode_rgb = library.find<decltype(WebPDecodeRGBInto)>("WebPDecodeRGBInto");
    decode_rgba = library.find<decltype(WebPDecodeRGBAInto)>("WebPDecodeRGBAInto");
    if (get_features != nullptr && decode_rgb != nullptr && decode_rgba != nullptr) return;
    refuse("cannot read WebP images: {}; install libwebp (apt-get install libwebp7)",
           library.error());
  }
  decltype(&WebPGetFeaturesInternal) get_features;
  decltype(&WebPDecodeRGBInto) decode_rgb;
  decltype(&WebPDecodeRGBAInto) decode_rgba;
};

const WebpLibrary& webp() {
  static const WebpLibrary kLibrary;
  return kLibrary;
}

/// Calls `action(type, content)` for each complete chunk of a WebP file.
template <class Action>
void for_each_chunk(Bytes bytes, const Action& action) {
  constexpr std::size_t kRiffHeader = 12;
  constexpr std::size_t kChunkHeader = 8;
  for (std::size_t at = kRiffHeader; at + kChunkHeader <= bytes.size();) {
    const auto length = static_cast<std::size_t>(little_endian(bytes, at + 4, 4));
    if (length > bytes.size() - at - kChunkHeader) break;
    action(text_of(bytes.subspan(at, 4)), bytes.subspan(at + kChunkHeader, length));
    at += kChunkHeader + length + length % 2;
  }
}

Header read_webp(Bytes bytes, const std::string& name) {
  WebPBitstreamFeatures features{};
  if (webp().get_features(bytes.data(), bytes.size(), &features, WEBP_DECODER_ABI_VERSION) !=
      VP8_STATUS_OK) {
    fail_at(name, 0, "corrupt WebP header");
  }
  Orientation orientation;
  for_each_chunk(bytes, [&](std::string_view type, Bytes content) {
    if (type == "EXIF") orientation.add_exif(content);
    if (type == "XMP ") orientation.add_xmp(text_of(content));
  });
  return {Format::kWebp, features.height, features.width, features.has_alpha != 0 ? 4 : 3,
          orientation.value()};
}

/// Of an animation, decodes the first frame, which may cover only a part of the image.
Image decode_webp(Bytes bytes, const Header& header, const std::string& name) {
  Image image{header.height, header.width, header.components, {}};
  image.pixels.resize(image.bytes());
  std::int64_t x = 0;
  std::int64_t y = 0;
  std::optional<Bytes> frame;
  for_each_chunk(bytes, [&](std::string_view type, Bytes content) {
    constexpr std::size_t kFrameHeader = 16;
    if (type != "ANMF" || frame || content.size() < kFrameHeader) return;
    x = 2 * little_endian(content, 0, 3);
    y = 2 * little_endian(content, 3, 3);
    frame = content.subspan(kFrameHeader);
  });
  const Bytes data = frame.value_or(bytes);
  WebPBitstreamFeatures features{};
  const auto decode = image.channels == 4 ? webp().decode_rgba : webp().decode_rgb;
  const std::int64_t begin = (y * image.width + x) * image.channels;
  if (webp().get_features(data.data(), data.size(), &features, WEBP_DECODER_ABI_VERSION) !=
          VP8_STATUS_OK ||
      x + features.width > image.width || y + features.height > image.height ||
      decode(data.data(), data.size(), image.pixels.data() + begin,
             image.pixels.size() - static_cast<std::size_t>(begin),
             static_cast<int>(image.width * image.channels)) == nullptr) {
    throw Error(ExitCode::kData, name + ": corrupt or truncated WebP image");
  }
  return image;
}

}  // namespace

const Codec kWebp{
    [](Bytes bytes) { return has_text(bytes, 0, "RIFF") && has_text(bytes, 8, "WEBP"); }, read_webp,
    decode_webp};

}  // namespace mnist_train::imaging
