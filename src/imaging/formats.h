#pragma once

#include <optional>

#include "imaging/codec.h"

namespace mnist_train::imaging {

/// The functions for one format. They throw Error(kData) with `name`.
struct Codec {
  bool (*recognises)(Bytes bytes);
  /// Reads the header without checking sizes.
  Header (*read)(Bytes bytes, const std::string& name);
  /// Returns 8-bit pixels, neither rotated nor composited: alpha is the last of 2 or 4 channels.
  Image (*decode)(Bytes bytes, const Header& header, const std::string& name);
};

// The formats, each in its own file.
extern const Codec kPng, kJpeg, kWebp, kBmp, kPnm;

/// Finds a picture's orientation like Pillow's exif_transpose: the EXIF tag or, without it, XMP's.
class Orientation {
 public:
  void add_exif(Bytes exif);
  void add_xmp(std::string_view xmp);
  /// Returns 1 (upright) to 8.
  int value() const;

 private:
  std::optional<int> exif_;
  std::optional<int> xmp_;
};

/// Returns the number in `size` bytes at `offset`; the caller checks the bounds.
std::int64_t big_endian(Bytes bytes, std::size_t offset, std::size_t size);
std::int64_t little_endian(Bytes bytes, std::size_t offset, std::size_t size);

/// Returns whether the bytes at `offset` are `text`.
bool has_text(Bytes bytes, std::size_t offset, std::string_view text);

}  // namespace mnist_train::imaging
