#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "imaging/header.h"
#include "imaging/image.h"

namespace mnist_train::imaging {

/// Encodes an image as PNG, 8 bits a channel, without loss.
std::string encode_png(const Image& image);

/// Encodes an image as baseline JFIF. `quality` is from 1 to 100; colour is not subsampled from 90
/// on.
std::string encode_jpeg(const Image& image, int quality);

/// Decodes a PNG or JPEG image to 1 or 3 channels, as its file has colour or not: palettes are
/// resolved, 16 bits become 8, transparency is dropped, an orientation in EXIF is ignored (all as
/// in torchvision's ImageFolder). Throws Error(kData) with `name` and, where it is known, the byte
/// offset: what read_header refuses, CMYK, truncated or corrupt data.
Image decode(std::span<const std::uint8_t> bytes, const std::string& name,
             const Limits& limits = {});

/// Decode a file of one format, whose header was checked, as `decode` does.
Image decode_png(std::span<const std::uint8_t> bytes, const Header& header,
                 const std::string& name);
Image decode_jpeg(std::span<const std::uint8_t> bytes, const Header& header,
                  const std::string& name);

}  // namespace mnist_train::imaging
