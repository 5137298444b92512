#pragma once

#include <array>
#include <cstdint>

#include "settings/augment_options.h"

namespace mnist_train::data {

/// A part of an image, or partly outside of it; none if it has no height.
struct PixelBox {
  std::int64_t top = 0;
  std::int64_t left = 0;
  std::int64_t height = 0;
  std::int64_t width = 0;
};

/// An operation of torchvision.transforms.v2.functional: first those of TrivialAugmentWide, in its
/// order, which draws one of them.
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
  /// Slope of a shear, pixels, degrees counter-clockwise, factor (brightness to sharpness), step
  /// between the levels that posterize leaves, threshold of solarize, part of the colour circle.
  double magnitude = 0;
};

/// Random draws of one entry of data.augment for one sample.
class EntryDraws {
 public:
  /// `state`: a hash of seed, epoch and sample. `entry`: the position in the list.
  EntryDraws(std::uint64_t state, std::uint64_t entry) : state_(state), entry_(entry) {}

  /// Draws uniformly from [0, 1), 53 bits; `number` tells the draws of the entry apart.
  double uniform(std::uint64_t number) const;

  /// Draws the window in the image without its padding.
  PixelBox crop(const settings::RandomCropOptions& options, settings::ImageSize image) const;
  /// Draws whether the image is flipped.
  bool flip(double probability) const { return uniform(0) < probability; }
  /// Draws the angle in radians, counter-clockwise.
  double angle(const settings::RotateOptions& options) const;
  /// Draws the square.
  PixelBox cutout(const settings::CutoutOptions& options, settings::ImageSize image) const;
  /// Draws the window that is resized, as torchvision's RandomResizedCrop.
  PixelBox resized_crop(const settings::RandomResizedCropOptions& options,
                        settings::ImageSize image) const;
  /// Draws the rectangle that is filled, as torchvision's RandomErasing.
  PixelBox erased(const settings::RandomErasingOptions& options, settings::ImageSize image) const;
  /// Draws the operations of color_jitter, in their order; an option of 0 makes an identity.
  std::array<PictureChange, 4> jitter(const settings::ColorJitterOptions& options) const;
  /// Draws the operation of trivial_augment.
  PictureChange trivial() const;
  /// Draws the rectangle that comes from the partner, as torchvision's CutMix.
  PixelBox cutmix(const settings::CutmixOptions& options, settings::ImageSize image) const;
  /// Returns the weight of the sample itself: the fixed one, or one drawn from Beta(alpha, alpha).
  double mixup_weight(const settings::MixupOptions& options) const;

 private:
  /// Draws from the interval.
  double between(settings::Interval interval, std::uint64_t number) const;
  /// Tries up to ten times to draw a box of random area and of random `ratio` of its sides, the
  /// first of which is returned in `height`, by two numbers from `number` on each time. Returns one
  /// that `fits`, at a place that two more draws choose; else none.
  template <class Fits>
  PixelBox box(std::uint64_t number, settings::Interval scale, settings::Interval ratio,
               settings::ImageSize image, const Fits& fits) const;

  std::uint64_t state_;
  std::uint64_t entry_;
};

/// Random draws in one epoch (counted from 0). A draw is a hash of seed, epoch, sample (its index
/// in the training set) and entry (its position in data.augment), so it is the same in every
/// process, with any number of processes, and after a resume.
class EpochDraws {
 public:
  EpochDraws(std::int64_t seed, std::int64_t epoch);

  /// Returns the draws of an entry for a sample.
  EntryDraws of(std::int64_t sample, std::uint64_t entry) const;
  /// Draws the seed of a network's own draws for the sample.
  std::int64_t seed(std::int64_t sample) const;

 private:
  std::uint64_t state_;
};

/// Draws the seed of LibTorch's generator for one step and shard, for networks that draw from it.
std::uint64_t generator_seed(std::int64_t seed, std::int64_t step, std::int64_t shard);

/// Draws from Beta(alpha, alpha) with two uniform numbers, by way of Student's t in polar form (R.
/// W. Bailey, Mathematics of Computation 62, 1994): exact, and without rejection.
double symmetric_beta(double alpha, double uniform1, double uniform2);

}  // namespace mnist_train::data
