#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

namespace mnist_train::settings {

/// Height and width of an image, in pixels.
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

/// Returns height and width for operators.
using Sides = std::vector<std::int64_t>;
inline Sides sides(const ImageSize& size) { return {size.height, size.width}; }

/// One number for all channels, or a list with one for each.
using PerChannel = std::variant<double, std::vector<double>>;

/// Normalisation of a byte: `(value / 255 - mean) / std`.
struct NormalizeOptions {
  PerChannel mean = 0.0;
  PerChannel std = 1.0;

  bool operator==(const NormalizeOptions&) const = default;
};

/// Value of pixels that no pixel of the image comes to: numbers from 0 to 255, or data.background.
struct Fill {
  PerChannel value = 0.0;
  bool is_background = false;  // instead of `value`, until `list_for_images`

  bool operator==(const Fill&) const = default;
};

/// A range of numbers to draw from.
struct Interval {
  double min = 0;
  double max = 0;

  bool operator==(const Interval&) const = default;
};

/// Pads the image with `padding` pixels on every side, then crops a window of `size` at a random
/// position.
struct RandomCropOptions {
  std::optional<ImageSize> size;  // none: the image's
  std::int64_t padding = 0;       // pixels
  Fill fill{};                    // of the padding
};

/// torchvision's RandomResizedCrop: resizes a window of random area and aspect ratio to `size`,
/// bilinear with antialiasing.
struct RandomResizedCropOptions {
  ImageSize size;
  Interval scale{0.08, 1};           // of the window's area, as a fraction of the image's
  Interval ratio{3.0 / 4, 4.0 / 3};  // of the window's width to its height
};

/// Mirrors left and right.
struct HorizontalFlipOptions {
  double probability = 0.5;
};

/// Mirrors top and bottom.
struct VerticalFlipOptions {
  double probability = 0.5;
};

/// Rotates about the centre by a random angle between -degrees and degrees, bilinear.
struct RotateOptions {
  double degrees = 0;
  Fill fill{};  // of pixels from outside
};

/// Resizes training and test images, bilinear with antialiasing, ignoring the aspect ratio.
struct ResizeOptions {
  ImageSize size;
};

/// Factors between 1 - d and 1 + d (hues: -d and d), not below 0, or in the interval.
using JitterRange = std::variant<double, Interval>;

/// torchvision's ColorJitter: changes brightness, contrast, saturation and hue in a random order.
struct ColorJitterOptions {
  JitterRange brightness = 0.0;
  JitterRange contrast = 0.0;
  JitterRange saturation = 0.0;
  JitterRange hue = 0.0;  // parts of the colour circle
};

/// torchvision's TrivialAugmentWide: one of 14 operations, with one of 31 magnitudes.
struct TrivialAugmentOptions {};

/// torchvision's RandomErasing: fills a rectangle of random area and aspect ratio.
struct RandomErasingOptions {
  double probability = 0.5;
  Interval scale{0.02, 0.33};  // of the rectangle's area, as a fraction of the image's
  Interval ratio{0.3, 3.3};    // of its height to its width
  Fill fill{};
};

/// Sets a square to zero, whose centre is anywhere in the image.
struct CutoutOptions {
  std::int64_t size = 0;  // pixels
};

enum class MixupScope { kLocal, kGlobal };

/// Computes weight * sample + (1 - weight) * partner, also of the labels. The weight is fixed or
/// drawn for each sample from Beta(alpha, alpha). The partner is the next sample of the epoch's
/// order (local), or the next process's sample at the same position of its batch (global).
struct MixupOptions {
  std::optional<double> alpha = 1;  // exactly one of the two
  std::optional<double> weight;     // of the sample itself
  MixupScope scope = MixupScope::kLocal;
};

/// torchvision's CutMix: replaces a rectangle by that of the partner, which is mixup's. Labels are
/// mixed by area. The part that stays is drawn for each sample from Beta(alpha, alpha), before the
/// rectangle is cut off at the border.
struct CutmixOptions {
  double alpha = 1;
  MixupScope scope = MixupScope::kLocal;
};

/// One entry of data.augment. Images are bytes up to a normalize entry, then floats.
using AugmentationOptions =
    std::variant<RandomCropOptions, RandomResizedCropOptions, HorizontalFlipOptions,
                 VerticalFlipOptions, RotateOptions, ResizeOptions, ColorJitterOptions,
                 TrivialAugmentOptions, NormalizeOptions, RandomErasingOptions, CutoutOptions,
                 MixupOptions, CutmixOptions>;
using AugmentList = std::vector<AugmentationOptions>;

/// Returns the name of an entry in the config, such as "random_crop".
std::string name_of(const AugmentationOptions& augmentation);

/// Returns the first entry of that kind, or null.
template <class Kind>
const Kind* find(const AugmentList& list) {
  for (const AugmentationOptions& entry : list) {
    if (const Kind* found = std::get_if<Kind>(&entry)) return found;
  }
  return nullptr;
}

/// Returns the scope of the list's mixup or cutmix; nothing if it has neither.
std::optional<MixupScope> mixing_scope(const AugmentList& list);

/// Returns the interval that factors around `center` (1, hues: 0) are drawn from.
Interval jitter_interval(const JitterRange& range, double center);

/// Returns the list for images with this number of channels: every `fill` is numbers. Throws
/// Error(kConfig) naming the key if an entry does not fit the channels.
AugmentList list_for_images(AugmentList list, std::int64_t channels,
                            const std::array<std::uint8_t, 3>& background);

/// Returns the size of images of `size` after the whole list. Throws Error(kConfig) if a crop does
/// not fit.
ImageSize augmented_size(const AugmentList& list, ImageSize size);

/// Returns the size of the centre window that test images of `size` get, which is resized to the
/// entry's size: that size, unless images are smaller.
ImageSize centre_window(const RandomResizedCropOptions& options, ImageSize size);

/// Returns the keys ("mean", "std") whose values do not fit this number of channels, with the
/// reason.
std::vector<std::pair<std::string, std::string>> channel_mismatches(
    const AugmentationOptions& entry, std::int64_t channels);

}  // namespace mnist_train::settings
