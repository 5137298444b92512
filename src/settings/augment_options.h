#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "settings/image_size.h"
#include "strict_json/value_type.h"

namespace mnist_train::settings {

/// One number for all channels, or a list with one for each.
using PerChannel = std::variant<double, std::vector<double>>;

/// Normalisation of a byte: `(value / 255 - mean) / std`.
struct NormalizeOptions {
  PerChannel mean = 0.0;
  PerChannel std = 1.0;

  bool operator==(const NormalizeOptions&) const = default;
};

/// Pads the image with `padding` zeros on every side, then crops a window of `size` at a random
/// position.
struct RandomCropOptions {
  std::optional<ImageSize> size;  // none: the image's
  std::int64_t padding = 0;       // pixels

  bool operator==(const RandomCropOptions&) const = default;
};

/// Mirrors left and right.
struct HorizontalFlipOptions {
  double probability = 0.5;

  bool operator==(const HorizontalFlipOptions&) const = default;
};

/// Rotates about the centre by a random angle between -degrees and degrees, bilinear; pixels from
/// outside are zero.
struct RotateOptions {
  double degrees = 0;

  bool operator==(const RotateOptions&) const = default;
};

/// Resizes training and test images, bilinear with antialiasing, ignoring the aspect ratio.
struct ResizeOptions {
  ImageSize size;

  bool operator==(const ResizeOptions&) const = default;
};

/// Sets a square to zero, whose centre is anywhere in the image.
struct CutoutOptions {
  std::int64_t size = 0;  // pixels

  bool operator==(const CutoutOptions&) const = default;
};

enum class MixupScope { kLocal, kGlobal };

/// Computes weight * sample + (1 - weight) * partner, also of the labels. The weight is fixed or
/// drawn for each sample from Beta(alpha, alpha). The partner is the next sample of the epoch's
/// order (local), or the next process's sample at the same position of its batch (global).
struct MixupOptions {
  std::optional<double> alpha = 1;  // exactly one of the two
  std::optional<double> weight;     // of the sample itself
  MixupScope scope = MixupScope::kLocal;

  bool operator==(const MixupOptions&) const = default;
};

/// One entry of data.augment. Images are bytes up to a normalize entry, then floats.
using AugmentationOptions =
    std::variant<RandomCropOptions, HorizontalFlipOptions, RotateOptions, ResizeOptions,
                 NormalizeOptions, CutoutOptions, MixupOptions>;
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

/// Returns the size of images of `size` after the whole list. Throws Error(kConfig) if a crop does
/// not fit.
ImageSize augmented_size(const AugmentList& list, ImageSize size);

/// Returns the JSON type of the list, which checks the entries and the rules between them.
strict_json::Type<AugmentList> augment_list();

/// Returns the JSON type of {"mean", "std"}, each a number or a list with one number a channel.
strict_json::Type<NormalizeOptions> normalize();

/// Returns the keys ("mean", "std") whose lists do not fit this number of channels, with the
/// reason.
std::vector<std::pair<std::string, std::string>> channel_mismatches(
    const NormalizeOptions& normalize, std::int64_t channels);

}  // namespace mnist_train::settings
