#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace mnist_train::imaging {

/// An image in host memory.
struct Image {
  std::int64_t height = 0;
  std::int64_t width = 0;
  std::int64_t channels = 1;         // 1: gray, 3: RGB
  std::vector<std::uint8_t> pixels;  // [height, width, channels] u8
  bool was_transparent = false;      // its file has pixels that are not opaque

  std::size_t bytes() const { return static_cast<std::size_t>(height * width * channels); }
};

/// The greatest size of an image, checked against its header before anything is allocated.
struct Limits {
  std::int64_t max_side = 16384;         // pixels
  std::int64_t max_pixels = 64LL << 20;  // height * width
};

/// Converts gray to RGB by repetition, and RGB to gray by ITU-R 601-2 luma as Pillow's convert("L")
/// does. `channels` is 1 or 3.
Image with_channels(Image image, std::int64_t channels);

/// Resizes, bilinear with antialiasing: each output pixel is the mean of the input pixels below a
/// triangle that widens as the image shrinks, as in Pillow's resize(BILINEAR), torchvision's with
/// antialias, and DALI's default. Values are within 1 of Pillow's, which rounds between its two
/// passes.
Image resize(const Image& image, std::int64_t height, std::int64_t width);

}  // namespace mnist_train::imaging
