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

/// What normalisation makes of a byte: `(value / 255 - mean) / std`.
struct NormalizeOptions {
  PerChannel mean = 0.0;
  PerChannel std = 1.0;

  bool operator==(const NormalizeOptions&) const = default;
};

/// Cuts a window of `size` at a random place out of the image, which is first padded with `padding`
/// zeros on every side.
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

/// Turns by a drawn angle between -degrees and degrees about the centre, bilinear; what comes in
/// from outside is zero.
struct RotateOptions {
  double degrees = 0;

  bool operator==(const RotateOptions&) const = default;
};

/// Resizes training and test images, bilinear with antialiasing, whatever the aspect ratio.
struct ResizeOptions {
  ImageSize size;

  bool operator==(const ResizeOptions&) const = default;
};

/// Sets a square to zero whose centre lies anywhere in the image.
struct CutoutOptions {
  std::int64_t size = 0;  // pixels

  bool operator==(const CutoutOptions&) const = default;
};

enum class MixupScope { kLocal, kGlobal };

/// Makes weight * sample + (1 - weight) * partner, of labels alike. The weight is drawn for each
/// sample from Beta(alpha, alpha), or fixed. The partner is the next sample of the epoch's order
/// (local), or the next process's sample at the same place of its batch (global).
struct MixupOptions {
  std::optional<double> alpha = 1;  // exactly one of the two
  std::optional<double> weight;     // of the sample itself
  MixupScope scope = MixupScope::kLocal;

  bool operator==(const MixupOptions&) const = default;
};

/// One entry of data.augment. Images are bytes until a normalize entry makes numbers of them.
using AugmentationOptions =
    std::variant<RandomCropOptions, HorizontalFlipOptions, RotateOptions, ResizeOptions,
                 NormalizeOptions, CutoutOptions, MixupOptions>;
using AugmentList = std::vector<AugmentationOptions>;

/// Returns the name of an entry in the config, such as "random_crop".
std::string name_of(const AugmentationOptions& augmentation);

/// Returns the entry of that kind, or null where the list has none.
template <class Kind>
const Kind* find(const AugmentList& list) {
  for (const AugmentationOptions& entry : list) {
    if (const Kind* found = std::get_if<Kind>(&entry)) return found;
  }
  return nullptr;
}

/// Returns the size that images of `size` have after the whole list. Throws Error(kConfig) where a
/// crop does not fit.
ImageSize augmented_size(const AugmentList& list, ImageSize size);

/// Returns the JSON type of the list; it checks its entries and the rules between them.
strict_json::Type<AugmentList> augment_list();

/// Returns the JSON type of {"mean", "std"}, each a number or a list with one number a channel.
strict_json::Type<NormalizeOptions> normalize();

/// Returns the keys ("mean", "std") whose lists do not fit so many channels, with the reason.
std::vector<std::pair<std::string, std::string>> channel_mismatches(
    const NormalizeOptions& normalize, std::int64_t channels);

}  // namespace mnist_train::settings
