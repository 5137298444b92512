#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

namespace mnist_train::settings {

/// Height and width of an image in pixels.
struct ImageSize {
  std::int64_t height = 0;
  std::int64_t width = 0;

  bool operator==(const ImageSize&) const = default;
};

inline constexpr std::int64_t kMaxImageSide = 16384;

/// Returns the size for messages, height first: "28x28".
inline std::string text_of(const ImageSize& size) {
  return std::to_string(size.height) + "x" + std::to_string(size.width);
}

/// Height and width as an argument list for operators.
using Sides = std::vector<std::int64_t>;
inline Sides sides(const ImageSize& size) { return {size.height, size.width}; }

/// One number for all channels, or a list with one number per channel.
using PerChannel = std::variant<double, std::vector<double>>;

/// Normalisation of a byte: `(value / 255 - mean) / std`.
struct NormalizeOptions {
  PerChannel mean = 0.0;
  PerChannel std = 1.0;

  bool operator==(const NormalizeOptions&) const = default;
};

/// Value of pixels that do not come from the image: numbers from 0 to 255, or data.background.
struct Fill {
  PerChannel value = 0.0;
  bool is_background = false;  // instead of `value`; resolved by `list_for_images`

  bool operator==(const Fill&) const = default;
};

/// A range from which numbers are drawn.
struct Interval {
  double min = 0;
  double max = 0;

  bool operator==(const Interval&) const = default;
};

/// Pads the image by `padding` pixels on every side, then crops a randomly placed window of `size`.
struct RandomCropOptions {
  std::optional<ImageSize> size;  // none: the image's size
  std::int64_t padding = 0;       // pixels
  Fill fill{};                    // of the padding
};

/// torchvision's RandomResizedCrop: resizes a window of random area and aspect ratio to `size`,
/// bilinear with antialiasing.
struct RandomResizedCropOptions {
  ImageSize size;
  Interval scale{0.08, 1};           // window area as a fraction of the image area
  Interval ratio{3.0 / 4, 4.0 / 3};  // window width divided by height
};

/// Flips images left to right.
struct HorizontalFlipOptions {
  double probability = 0.5;
};

/// Flips images top to bottom.
struct VerticalFlipOptions {
  double probability = 0.5;
};

/// Rotates about the centre by a random angle between -degrees and degrees, bilinear.
struct RotateOptions {
  double degrees = 0;
  Fill fill{};  // of pixels from outside the image
};

/// Resizes training and test images, bilinear with antialiasing, ignoring the aspect ratio.
struct ResizeOptions {
  ImageSize size;
};

/// A distance d for factors from max(0, 1 - d) to 1 + d (hue: -d to d), or the interval itself.
using JitterRange = std::variant<double, Interval>;

/// torchvision's ColorJitter: changes brightness, contrast, saturation and hue in a random order.
struct ColorJitterOptions {
  JitterRange brightness = 0.0;
  JitterRange contrast = 0.0;
  JitterRange saturation = 0.0;
  JitterRange hue = 0.0;  // as a fraction of the colour circle
};

/// torchvision's TrivialAugmentWide: one of 14 operations with one of 31 magnitudes.
struct TrivialAugmentOptions {};

/// torchvision's RandomErasing: fills a rectangle of random area and aspect ratio.
struct RandomErasingOptions {
  double probability = 0.5;
  Interval scale{0.02, 0.33};  // rectangle area as a fraction of the image area
  Interval ratio{0.3, 3.3};    // rectangle height divided by width
  Fill fill{};
};

/// Sets a square to zero; its centre may be anywhere in the image.
struct CutoutOptions {
  std::int64_t size = 0;  // pixels
};

enum class MixupScope { kLocal, kGlobal };

/// Computes weight * sample + (1 - weight) * partner for images and labels. The weight is fixed, or
/// drawn per sample from Beta(alpha, alpha). The partner is the next sample in the epoch's order
/// (local), or the next process's sample at the same position in its batch (global).
struct MixupOptions {
  std::optional<double> alpha = 1;  // exactly one of `alpha` and `weight` is set
  std::optional<double> weight;     // of the sample itself
  MixupScope scope = MixupScope::kLocal;
};

/// torchvision's CutMix: replaces a rectangle with the same rectangle of the partner, which is
/// chosen as for mixup. Labels are mixed by area. The fraction of the image that is kept is drawn
/// per sample from Beta(alpha, alpha), before the rectangle is clipped at the border.
struct CutmixOptions {
  double alpha = 1;
  MixupScope scope = MixupScope::kLocal;
};

/// An entry of data.augment. Images are bytes before a normalize entry, and floats after it.
using AugmentationOptions =
    std::variant<RandomCropOptions, RandomResizedCropOptions, HorizontalFlipOptions,
                 VerticalFlipOptions, RotateOptions, ResizeOptions, ColorJitterOptions,
                 TrivialAugmentOptions, NormalizeOptions, RandomErasingOptions, CutoutOptions,
                 MixupOptions, CutmixOptions>;
using AugmentList = std::vector<AugmentationOptions>;

/// Returns the name of an entry in the config, such as "random_crop".
std::string name_of(const AugmentationOptions& augmentation);

/// Returns the first entry of this kind, or null.
template <class Kind>
const Kind* find(const AugmentList& list) {
  for (const AugmentationOptions& entry : list) {
    if (const Kind* found = std::get_if<Kind>(&entry)) return found;
  }
  return nullptr;
}

/// Returns the scope of the list's mixup or cutmix entry, or nullopt if it has neither.
std::optional<MixupScope> mixing_scope(const AugmentList& list);

/// Returns the interval from which factors around `center` (1; for hue, 0) are drawn.
Interval jitter_interval(const JitterRange& range, double center);

/// Returns the list for images with this number of channels, with every `fill` resolved to numbers.
/// Throws Error(kConfig) naming the key if an entry does not match the channels.
AugmentList list_for_images(AugmentList list, std::int64_t channels,
                            const std::array<std::uint8_t, 3>& background);

/// Returns the size that the list turns `size` into. Throws Error(kConfig) if a crop does not fit.
ImageSize augmented_size(const AugmentList& list, ImageSize size);

/// Returns the size of the centre window to cut from test images of `size`: the entry's size or,
/// for smaller images, one with the same aspect ratio, to be resized to the entry's size.
ImageSize centre_window(const RandomResizedCropOptions& options, ImageSize size);

/// Returns where torchvision's CenterCrop begins a window: half of the difference, rounded half to
/// even, or towards zero if it is negative because the window is larger.
std::int64_t centre_begin(std::int64_t size, std::int64_t window);

/// Returns keys, such as "mean", whose values do not match this number of channels, with reasons.
std::vector<std::pair<std::string, std::string>> channel_mismatches(
    const AugmentationOptions& entry, std::int64_t channels);

}  // namespace mnist_train::settings
