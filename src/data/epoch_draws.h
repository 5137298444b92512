#pragma once

#include <array>
#include <cstdint>

#include "settings/augment_options.h"

namespace mnist_train::data {

/// A box in pixels, which may extend beyond the image. Height 0 means no box.
struct PixelBox {
  std::int64_t top = 0;
  std::int64_t left = 0;
  std::int64_t height = 0;
  std::int64_t width = 0;
};

/// An operation of torchvision.transforms.v2.functional. Those that TrivialAugmentWide draws from
/// come first, in its order.
enum class PictureOperation {
  kIdentity,
  kShearX,
  kShearY,
  kTranslateX,
  kTranslateY,
  kRotate,
  kBrightness,
  kSaturation,
  kContrast,
  kSharpness,
  kPosterize,
  kSolarize,
  kAutocontrast,
  kEqualize,
  kHue
};

struct PictureChange {
  PictureOperation operation = PictureOperation::kIdentity;
  /// Shear slope, translation in pixels, counter-clockwise rotation in degrees, factor (brightness
  /// to sharpness), posterize step, solarize threshold, or fraction of the hue circle.
  double magnitude = 0;
};

/// Random draws for one entry of data.augment and one sample.
class EntryDraws {
 public:
  /// `state`: a hash of seed, epoch and sample. `entry`: the position in data.augment.
  EntryDraws(std::uint64_t state, std::uint64_t entry) : state_(state), entry_(entry) {}

  /// Draws uniformly from [0, 1) with 53 bits; `number` distinguishes the draws of an entry.
  double uniform(std::uint64_t number) const;

  /// Draws the crop window, relative to the unpadded image.
  PixelBox crop(const settings::RandomCropOptions& options, settings::ImageSize image) const;
  bool flip(double probability) const { return uniform(0) < probability; }
  /// Draws the angle in radians, counter-clockwise.
  double angle(const settings::RotateOptions& options) const;
  PixelBox cutout(const settings::CutoutOptions& options, settings::ImageSize image) const;
  /// Draws the window to resize, like torchvision's RandomResizedCrop.
  PixelBox resized_crop(const settings::RandomResizedCropOptions& options,
                        settings::ImageSize image) const;
  /// Draws the rectangle to fill, like torchvision's RandomErasing.
  PixelBox erasing_box(const settings::RandomErasingOptions& options,
                       settings::ImageSize image) const;
  /// Draws the operations of color_jitter and their order. Disabled operations become kIdentity.
  std::array<PictureChange, 4> jitter(const settings::ColorJitterOptions& options) const;
  PictureChange trivial_augment() const;
  /// Draws the rectangle to copy from the partner, like torchvision's CutMix.
  PixelBox cutmix(const settings::CutmixOptions& options, settings::ImageSize image) const;
  /// Returns the sample's own weight: fixed, or drawn from Beta(alpha, alpha).
  double mixup_weight(const settings::MixupOptions& options) const;

 private:
  double between(settings::Interval interval, std::uint64_t number) const;
  /// Draws a box whose share of the image's area is in `scale` and whose height / width is in
  /// `ratio`. Makes up to ten attempts with two draws each, starting at draw `number`. Returns the
  /// first box that `fits`, at a position given by the next two draws, or no box if none fits.
  template <class Fits>
  PixelBox box(std::uint64_t number, settings::Interval scale, settings::Interval ratio,
               settings::ImageSize image, const Fits& fits) const;

  std::uint64_t state_;
  std::uint64_t entry_;
};

/// Random draws of one epoch (counted from 0). A draw is a hash of seed, epoch, sample (its index
/// in the training set) and entry (its position in data.augment), so it is identical in every
/// process, for any number of processes, and after resuming.
class EpochDraws {
 public:
  EpochDraws(std::int64_t seed, std::int64_t epoch);

  EntryDraws of(std::int64_t sample, std::uint64_t entry) const;
  /// Draws the seed of the random numbers that a network uses for the sample.
  std::int64_t seed(std::int64_t sample) const;

 private:
  std::uint64_t state_;
};

/// Returns the seed of LibTorch's generator for one step and shard, for networks that use it.
std::uint64_t generator_seed(std::int64_t seed, std::int64_t step, std::int64_t shard);

/// Draws from Beta(alpha, alpha) using two uniform numbers, via Student's t in polar form (R. W.
/// Bailey, Mathematics of Computation 62, 1994): exact, without rejection sampling.
double symmetric_beta(double alpha, double uniform1, double uniform2);

}  // namespace mnist_train::data
