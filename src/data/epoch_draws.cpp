#include "data/epoch_draws.h"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <utility>

namespace mnist_train::data {

namespace {

/// One step of splitmix64 (Steele, Lea, Flood 2014): every input bit affects every output bit.
std::uint64_t mix(std::uint64_t bits) {
  bits += 0x9e3779b97f4a7c15;
  bits = (bits ^ (bits >> 30)) * 0xbf58476d1ce4e5b9;
  bits = (bits ^ (bits >> 27)) * 0x94d049bb133111eb;
  return bits ^ (bits >> 31);
}

/// Returns a hash of `state` and the words, in order.
template <class... Words>
std::uint64_t absorb(std::uint64_t state, Words... words) {
  ((state = mix(state ^ mix(static_cast<std::uint64_t>(words)))), ...);
  return state;
}

/// Maps a uniform number in [0, 1) to an integer in [0, count).
std::int64_t choose(double uniform, std::int64_t count) {
  return static_cast<std::int64_t>(uniform * static_cast<double>(count));
}

}  // namespace

EpochDraws::EpochDraws(std::int64_t seed, std::int64_t epoch) : state_(absorb(0, seed, epoch)) {}

EntryDraws EpochDraws::of(std::int64_t sample, std::uint64_t entry) const {
  return {absorb(state_, sample), entry};
}

std::int64_t EpochDraws::seed(std::int64_t sample) const {
  constexpr std::uint64_t kNetwork = ~std::uint64_t{0};  // no draw of an entry has this number
  return static_cast<std::int64_t>(absorb(state_, sample, kNetwork));
}

double EntryDraws::uniform(std::uint64_t number) const {
  return static_cast<double>(absorb(state_, entry_ << 8 | number) >> 11) * 0x1p-53;
}

PixelBox EntryDraws::crop(const settings::RandomCropOptions& options,
                          settings::ImageSize image) const {
  const settings::ImageSize window = options.size.value_or(image);
  const std::int64_t rows = image.height + 2 * options.padding - window.height + 1;
  const std::int64_t columns = image.width + 2 * options.padding - window.width + 1;
  return {choose(uniform(0), rows) - options.padding, choose(uniform(1), columns) - options.padding,
          window.height, window.width};
}

double EntryDraws::angle(const settings::RotateOptions& options) const {
  return (2 * uniform(0) - 1) * options.degrees * std::numbers::pi / 180;
}

PixelBox EntryDraws::cutout(const settings::CutoutOptions& options,
                            settings::ImageSize image) const {
  return {choose(uniform(0), image.height) - options.size / 2,
          choose(uniform(1), image.width) - options.size / 2, options.size, options.size};
}

double EntryDraws::between(settings::Interval interval, std::uint64_t number) const {
  return interval.min + (interval.max - interval.min) * uniform(number);
}

template <class Fits>
PixelBox EntryDraws::box(std::uint64_t number, settings::Interval scale, settings::Interval ratio,
                         settings::ImageSize image, const Fits& fits) const {
  constexpr int kTries = 10;
  const auto area = static_cast<double>(image.height * image.width);
  const settings::Interval log_ratio{std::log(ratio.min), std::log(ratio.max)};
  for (int i = 0; i < kTries; ++i, number += 2) {
    const double part = area * between(scale, number);
    const double aspect_ratio = std::exp(between(log_ratio, number + 1));
    PixelBox box{0, 0, std::llrint(std::sqrt(part * aspect_ratio)),  // half to even, like Python
                 std::llrint(std::sqrt(part / aspect_ratio))};
    if (!fits(box)) continue;
    box.top = choose(uniform(number + 2), image.height - box.height + 1);
    box.left = choose(uniform(number + 3), image.width - box.width + 1);
    return box;
  }
  return {};
}

PixelBox EntryDraws::resized_crop(const settings::RandomResizedCropOptions& options,
                                  settings::ImageSize image) const {
  const auto [height, width] = image;
  // Like torchvision's, options.ratio is width / height; `box` takes height / width.
  const settings::Interval ratio{1 / options.ratio.max, 1 / options.ratio.min};
  PixelBox window = box(0, options.scale, ratio, image, [height, width](const PixelBox& rect) {
    return rect.height > 0 && rect.height <= height && rect.width > 0 && rect.width <= width;
  });
  if (window.height > 0) return window;
  window = {0, 0, height, width};
  const double shape = static_cast<double>(width) / static_cast<double>(height);
  if (shape < options.ratio.min) {
    window.height = std::max(1LL, std::llrint(static_cast<double>(width) / options.ratio.min));
  } else if (shape > options.ratio.max) {
    window.width = std::max(1LL, std::llrint(static_cast<double>(height) * options.ratio.max));
  }
  window.top = (height - window.height) / 2;
  window.left = (width - window.width) / 2;
  return window;
}

PixelBox EntryDraws::erasing_box(const settings::RandomErasingOptions& options,
                                 settings::ImageSize image) const {
  if (uniform(0) >= options.probability) return {};
  return box(1, options.scale, options.ratio, image, [image](const PixelBox& rect) {
    return rect.height < image.height && rect.width < image.width;
  });
}

std::array<PictureChange, 4> EntryDraws::jitter(const settings::ColorJitterOptions& options) const {
  const auto change = [&](PictureOperation operation, const settings::JitterRange& range,
                          double center, std::uint64_t number) {
    const settings::Interval interval = settings::jitter_interval(range, center);
    if (interval == settings::Interval{center, center}) return PictureChange{};
    return PictureChange{operation, between(interval, number)};
  };
  std::array<PictureChange, 4> changes{
      change(PictureOperation::kBrightness, options.brightness, 1, 0),
      change(PictureOperation::kContrast, options.contrast, 1, 1),
      change(PictureOperation::kSaturation, options.saturation, 1, 2),
      change(PictureOperation::kHue, options.hue, 0, 3)};
  for (std::uint64_t left = changes.size(); left > 1; --left) {  // Fisher-Yates shuffle
    const std::int64_t chosen = choose(uniform(2 + left), static_cast<std::int64_t>(left));
    std::swap(changes[left - 1], changes[static_cast<std::size_t>(chosen)]);
  }
  return changes;
}

PictureChange EntryDraws::trivial_augment() const {
  using enum PictureOperation;
  constexpr std::int64_t kOperations = 14;
  constexpr std::int64_t kMagnitudes = 31;
  const auto operation = static_cast<PictureOperation>(choose(uniform(0), kOperations));
  const std::int64_t number = choose(uniform(1), kMagnitudes);
  const bool is_negative = uniform(2) <= 0.5;
  // Matches torch.linspace in fp32 on CPUs with FMA: halfway from 0 to 32 is slightly less than 16.
  const auto magnitude = [number](float first, float last) {
    const double step = (last - first) / (kMagnitudes - 1);
    const bool is_early = number < kMagnitudes / 2;
    const double from_end = step * static_cast<double>(number - (is_early ? 0 : kMagnitudes - 1));
    return static_cast<double>(static_cast<float>((is_early ? first : last) + from_end));
  };
  const auto up_to = [&](float last) { return magnitude(0, last) * (is_negative ? -1 : 1); };
  switch (operation) {
    case kShearX:
    case kShearY:
      return {operation, up_to(0.99F)};
    case kTranslateX:
    case kTranslateY:
      return {operation, std::trunc(up_to(32))};
    case kRotate:
      return {operation, up_to(135)};
    case kBrightness:
    case kSaturation:
    case kContrast:
    case kSharpness:
      return {operation, 1 + up_to(0.99F)};
    case kPosterize:
      return {operation, std::exp2(std::rint(static_cast<double>(number) / 5))};
    case kSolarize:
      return {operation, 255 * magnitude(1, 0)};
    default:
      return {operation, 0};
  }
}

PixelBox EntryDraws::cutmix(const settings::CutmixOptions& options,
                            settings::ImageSize image) const {
  const double weight = symmetric_beta(options.alpha, uniform(0), uniform(1));
  const double part = 0.5 * std::sqrt(1 - weight);
  const auto range = [&](std::int64_t size, std::uint64_t number) {
    const std::int64_t center = choose(uniform(number), size);
    const auto half = static_cast<std::int64_t>(part * static_cast<double>(size));
    return std::pair(std::max<std::int64_t>(center - half, 0), std::min(center + half, size));
  };
  const auto [left, right] = range(image.width, 2);
  const auto [top, bottom] = range(image.height, 3);
  return {top, left, bottom - top, right - left};
}

double EntryDraws::mixup_weight(const settings::MixupOptions& options) const {
  if (options.weight) return *options.weight;
  return symmetric_beta(options.alpha.value_or(1), uniform(0), uniform(1));
}

std::uint64_t generator_seed(std::int64_t seed, std::int64_t step, std::int64_t shard) {
  return absorb(0, seed, step, shard);
}

double symmetric_beta(double alpha, double uniform1, double uniform2) {
  // With w and the cosine below, t = sqrt(2 alpha w) * cosine follows Student's t-distribution with
  // 2 alpha degrees of freedom, and 1/2 + t / (2 sqrt(2 alpha + t^2)) follows Beta(alpha, alpha).
  const double cosine = std::cos(2 * std::numbers::pi * uniform2);
  const double w = std::expm1(-std::log1p(-uniform1) / alpha);  // (1 - uniform1)^(-1/alpha) - 1
  const double scaled_t2 = cosine * cosine * w;                 // t^2 / (2 alpha)
  const double part = scaled_t2 > 0 ? 1 / std::sqrt(1 + 1 / scaled_t2) : 0;
  return 0.5 + std::copysign(0.5, cosine) * part;
}

}  // namespace mnist_train::data
