#include "data/epoch_draws.h"

#include <cmath>
#include <numbers>

namespace mnist_train::data {

namespace {

/// The finalizer of splitmix64 (Steele, Lea, Flood 2014): every bit of the input moves every bit of
/// the result.
std::uint64_t mix(std::uint64_t bits) {
  bits += 0x9e3779b97f4a7c15;
  bits = (bits ^ (bits >> 30)) * 0xbf58476d1ce4e5b9;
  bits = (bits ^ (bits >> 27)) * 0x94d049bb133111eb;
  return bits ^ (bits >> 31);
}

std::uint64_t absorb(std::uint64_t state, std::uint64_t word) { return mix(state ^ mix(word)); }

/// A whole number of [0, count).
std::int64_t choose(double uniform, std::int64_t count) {
  return static_cast<std::int64_t>(uniform * static_cast<double>(count));
}

}  // namespace

EpochDraws::EpochDraws(std::int64_t seed, std::int64_t epoch)
    : state_(
          absorb(absorb(0, static_cast<std::uint64_t>(seed)), static_cast<std::uint64_t>(epoch))) {}

double EpochDraws::uniform(std::int64_t sample, std::uint64_t entry, std::uint64_t number) const {
  const std::uint64_t bits =
      absorb(absorb(state_, static_cast<std::uint64_t>(sample)), entry << 8 | number);
  return static_cast<double>(bits >> 11) * 0x1p-53;
}

std::int64_t EpochDraws::seed(std::int64_t sample) const {
  constexpr std::uint64_t kNetwork = ~std::uint64_t{0};  // which no entry of data.augment has
  return static_cast<std::int64_t>(
      absorb(absorb(state_, static_cast<std::uint64_t>(sample)), kNetwork));
}

PixelPlace EpochDraws::crop(std::int64_t sample, std::uint64_t entry,
                            const settings::RandomCropOptions& options,
                            settings::ImageSize image) const {
  const settings::ImageSize window = options.size.value_or(image);
  const std::int64_t rows = image.height + 2 * options.padding - window.height + 1;
  const std::int64_t columns = image.width + 2 * options.padding - window.width + 1;
  return {choose(uniform(sample, entry, 0), rows) - options.padding,
          choose(uniform(sample, entry, 1), columns) - options.padding};
}

bool EpochDraws::flip(std::int64_t sample, std::uint64_t entry,
                      const settings::HorizontalFlipOptions& options) const {
  return uniform(sample, entry, 0) < options.probability;
}

double EpochDraws::angle(std::int64_t sample, std::uint64_t entry,
                         const settings::RotateOptions& options) const {
  const double degrees = (2 * uniform(sample, entry, 0) - 1) * options.degrees;
  return degrees * std::numbers::pi / 180;
}

PixelPlace EpochDraws::cutout(std::int64_t sample, std::uint64_t entry,
                              const settings::CutoutOptions& options,
                              settings::ImageSize image) const {
  return {choose(uniform(sample, entry, 0), image.height) - options.size / 2,
          choose(uniform(sample, entry, 1), image.width) - options.size / 2};
}

double EpochDraws::mixup_weight(std::int64_t sample, std::uint64_t entry,
                                const settings::MixupOptions& options) const {
  if (options.weight) return *options.weight;
  return symmetric_beta(options.alpha.value_or(1), uniform(sample, entry, 0),
                        uniform(sample, entry, 1));
}

std::uint64_t generator_seed(std::int64_t seed, std::int64_t step, std::int64_t shard) {
  return absorb(
      absorb(absorb(0, static_cast<std::uint64_t>(seed)), static_cast<std::uint64_t>(step)),
      static_cast<std::uint64_t>(shard));
}

double symmetric_beta(double alpha, double uniform1, double uniform2) {
  // t = sqrt(2 alpha w) cos(2 pi v) has Student's distribution with 2 alpha degrees of freedom, and
  // 1/2 + t / (2 sqrt(2 alpha + t^2)) that of Beta(alpha, alpha).
  const double cosine = std::cos(2 * std::numbers::pi * uniform2);
  const double w = std::expm1(-std::log1p(-uniform1) / alpha);  // u^(-1/alpha) - 1, u in (0, 1]
  const double t2 = cosine * cosine * w;
  const double part = t2 > 0 ? 1 / std::sqrt(1 + 1 / t2) : 0;
  return 0.5 + std::copysign(0.5, cosine) * part;
}

}  // namespace mnist_train::data
