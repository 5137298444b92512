#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
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

/// The maximum size of an image, checked against its header before any allocation.
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

/// Returns the mean brightness, from 0 to 1, of the outermost pixels of an image [C,H,W].
double border_brightness(std::span<const std::uint8_t> planes, std::int64_t height,
                         std::int64_t width);

/// Returns whether an image with this border brightness is light although the model's training
/// images, of mean brightness `trained_mean`, are dark, or vice versa. False if that mean is near
/// 0.5. None of the 140,000 images of MNIST and Fashion-MNIST looks inverted (their brightest
/// border is 0.42), and all do once they are inverted.
bool looks_inverted(double border, double trained_mean);

}  // namespace mnist_train::imaging
