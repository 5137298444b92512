#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "settings/image_size.h"
#include "strict_json/value_type.h"

namespace mnist_train::settings {

/// `(value / 255 - mean) / std`; one number for all channels.
struct NormalizeOptions {
  double mean = 0;
  double std = 1;

  bool operator==(const NormalizeOptions&) const = default;
};

/// A window at a place that is drawn, on the image with `padding` zeros on every side.
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

/// By an angle between -degrees and degrees about the centre; bilinear, what comes in is zero.
struct RotateOptions {
  double degrees = 0;

  bool operator==(const RotateOptions&) const = default;
};

/// Bilinear with antialiasing, whatever the aspect ratio; for test images, too.
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

/// weight * sample + (1 - weight) * partner, labels alike. The weight is drawn for each sample from
/// Beta(alpha, alpha), or fixed. local: the partner is the next sample of the epoch's order;
/// global: the sample of the next process that stands at the same place of its batch.
struct MixupOptions {
  std::optional<double> alpha = 1;  // exactly one of the two
  std::optional<double> weight;     // of the sample itself
  MixupScope scope = MixupScope::kLocal;

  bool operator==(const MixupOptions&) const = default;
};

/// One entry of data.augment. Images are bytes until a normalize makes them numbers.
using AugmentationOptions =
    std::variant<RandomCropOptions, HorizontalFlipOptions, RotateOptions, ResizeOptions,
                 NormalizeOptions, CutoutOptions, MixupOptions>;
using AugmentList = std::vector<AugmentationOptions>;

/// "random_crop", as the config names it.
std::string name_of(const AugmentationOptions& augmentation);

/// The entry of that kind, if the list has one.
template <class Kind>
const Kind* find(const AugmentList& list) {
  for (const AugmentationOptions& entry : list) {
    if (const Kind* found = std::get_if<Kind>(&entry)) return found;
  }
  return nullptr;
}

/// What images of `size` have become after the list. Throws Error(kConfig) where a crop does not
/// fit.
ImageSize augmented_size(const AugmentList& list, ImageSize size);

/// The list with its entries and the rules between them checked.
strict_json::Type<AugmentList> augment_list();

/// {"mean", "std"}.
strict_json::Type<NormalizeOptions> normalize();

}  // namespace mnist_train::settings
