#pragma once

#include <cstdint>

#include "settings/augment_options.h"

namespace mnist_train::data {

/// A pixel of an image, or outside of it if there is padding.
struct PixelPlace {
  std::int64_t top = 0;
  std::int64_t left = 0;
};

/// Random draws of the entries of data.augment in one epoch (counted from 0). A draw is a hash of
/// seed, epoch, sample (its index in the training set) and entry (its position in the list), so it
/// is the same in every process, with any number of processes, and after a resume.
class EpochDraws {
 public:
  EpochDraws(std::int64_t seed, std::int64_t epoch);

  /// Draws uniformly from [0, 1), 53 bits; `number` distinguishes an entry's draws for one sample.
  double uniform(std::int64_t sample, std::uint64_t entry, std::uint64_t number) const;

  /// Draws the seed of a network's own draws for the sample.
  std::int64_t seed(std::int64_t sample) const;

  /// Draws the window's first pixel in the image without its padding.
  PixelPlace crop(std::int64_t sample, std::uint64_t entry,
                  const settings::RandomCropOptions& options, settings::ImageSize image) const;
  /// Draws whether the image is flipped.
  bool flip(std::int64_t sample, std::uint64_t entry,
            const settings::HorizontalFlipOptions& options) const;
  /// Draws the angle in radians, counter-clockwise.
  double angle(std::int64_t sample, std::uint64_t entry,
               const settings::RotateOptions& options) const;
  /// Draws the square's first pixel; parts of the square may be outside the image.
  PixelPlace cutout(std::int64_t sample, std::uint64_t entry,
                    const settings::CutoutOptions& options, settings::ImageSize image) const;
  /// Returns the weight of the sample itself: the fixed one, or one drawn from Beta(alpha, alpha).
  double mixup_weight(std::int64_t sample, std::uint64_t entry,
                      const settings::MixupOptions& options) const;

 private:
  std::uint64_t state_;
};

/// Draws the seed of LibTorch's generator for one step and shard, for networks that draw from it.
std::uint64_t generator_seed(std::int64_t seed, std::int64_t step, std::int64_t shard);

/// Draws from Beta(alpha, alpha) with two uniform numbers, by way of Student's t in polar form (R.
/// W. Bailey, Mathematics of Computation 62, 1994): exact, and without rejection.
double symmetric_beta(double alpha, double uniform1, double uniform2);

}  // namespace mnist_train::data
