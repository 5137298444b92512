#include <webp/decode.h>

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

constexpr std::size_t kRiffHeader = 12;
constexpr std::size_t kChunkHeader = 8;

Header read_webp(Bytes bytes, const std::string& name) {
  WebPBitstreamFeatures features{};
  if (webp().get_features(bytes.data(), bytes.size(), &features, WEBP_DECODER_ABI_VERSION) !=
      VP8_STATUS_OK) {
    fail_at(name, 0, "corrupt WebP header");
  }
  if (features.has_animation != 0) {
    fail_at(name, 0, "an animated WebP image; {}", conversion_advice(name));
  }
  Orientation orientation;
  for (std::size_t at = kRiffHeader; at + kChunkHeader <= bytes.size();) {
    const auto length = static_cast<std::size_t>(little_endian(bytes, at + 4, 4));
    if (length > bytes.size() - at - kChunkHeader) break;
    const Bytes content = bytes.subspan(at + kChunkHeader, length);
    if (has_text(bytes, at, "EXIF")) orientation.add_exif(content);
    if (has_text(bytes, at, "XMP ")) orientation.add_xmp(text_of(content));
    at += kChunkHeader + length + length % 2;
  }
  return {Format::kWebp, features.height, features.width, features.has_alpha != 0 ? 4 : 3,
          orientation.value()};
}

Image decode_webp(Bytes bytes, const Header& header, const std::string& name) {
  Image image{header.height, header.width, header.components, {}};
  image.pixels.resize(image.bytes());
  const auto decode = image.channels == 4 ? webp().decode_rgba : webp().decode_rgb;
  const auto stride = static_cast<int>(image.width * image.channels);
  if (decode(bytes.data(), bytes.size(), image.pixels.data(), image.pixels.size(), stride) ==
      nullptr) {
    throw Error(ExitCode::kData, name + ": corrupt or truncated WebP image");
  }
  return image;
}

}  // namespace

const Codec kWebp{
    [](Bytes bytes) { return has_text(bytes, 0, "RIFF") && has_text(bytes, 8, "WEBP"); }, read_webp,
    decode_webp};

}  // namespace mnist_train::imaging
