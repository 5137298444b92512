#pragma once

#include <array>
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
  bool was_turned = false;           // its file has another orientation

  std::size_t bytes() const { return static_cast<std::size_t>(height * width * channels); }
};

/// Red, green, blue.
using Colour = std::array<std::uint8_t, 3>;
inline constexpr Colour kWhite{255, 255, 255};

/// The greatest height * width by default, checked against the header before any allocation.
inline constexpr std::int64_t kMostPixels = 64LL << 20;

/// Converts gray to RGB by repetition, and RGB to gray by ITU-R 601-2 luma as Pillow's convert("L")
/// does. `channels` is 1 or 3.
Image with_channels(Image image, std::int64_t channels);

/// Resizes, bilinear with antialiasing: each output pixel is the mean of the input pixels below a
/// triangle that widens as the image shrinks, as in Pillow's resize(BILINEAR), torchvision's with
/// antialias, and DALI's default. Values are within 1 of Pillow's, which rounds between its two
/// passes.
Image resize(const Image& image, std::int64_t height, std::int64_t width);

/// The size that a picture is resized to, and the place of its first pixel on a canvas. What is
/// outside of the canvas is cut off. The size of the canvas stretches the picture.
struct Framing {
  std::int64_t height = 0;
  std::int64_t width = 0;
  std::int64_t top = 0;
  std::int64_t left = 0;
};

/// Covers the canvas, cut off at both ends of one side: for a square canvas torchvision's Resize of
/// the shorter side and CenterCrop, with their rounding.
Framing cropped(const Image& image, std::int64_t height, std::int64_t width);
/// Shows the whole picture, with bars at both ends of one side: Pillow's ImageOps.pad.
Framing padded(const Image& image, std::int64_t height, std::int64_t width);

/// Writes a canvas of `background` with the picture on it to `out`, as planes [channels, height,
/// width]. `channels` is 1 or 3; RGB is converted to gray before it is resized.
void draw_planes(Image image, const Framing& framing, std::int64_t channels, std::int64_t height,
                 std::int64_t width, const Colour& background, std::uint8_t* out);

/// Returns the mean brightness, from 0 to 1, of the outermost pixels of an image [C,H,W].
double border_brightness(std::span<const std::uint8_t> planes, std::int64_t height,
                         std::int64_t width);

/// Returns whether an image with this border brightness is light although the model's training
/// images, of mean brightness `trained_mean`, are dark, or vice versa. False if that mean is near
/// 0.5. None of the 140,000 images of MNIST and Fashion-MNIST looks inverted (their brightest
/// border is 0.42), and all do once they are inverted.
bool looks_inverted(double border, double trained_mean);

}  // namespace mnist_train::imaging
