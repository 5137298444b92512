#include <ATen/TensorOperators.h>
#include <ATen/ops/_upsample_bilinear2d_aa.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/avg_pool2d.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/grid_sampler.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numbers>
#include <span>

#include "base/parallel.h"
#include "loader/augmenter.h"

namespace mnist_train::loader {

namespace {

using data::PictureOperation;
using enum data::PictureOperation;

/// An image in memory: planes of `height` rows, one plane per channel.
struct Planes {
  const std::uint8_t* values;
  std::int64_t channels;
  std::int64_t height;
  std::int64_t width;

  std::int64_t pixels() const { return height * width; }
};

/// An affine map from output to input pixels, relative to the centre. Inputs are in units of half
/// the image size: x = [0] * x' + [1] * y' + [2], with x' and y' in pixels; y uses [3] to [5].
using AffineMap = std::array<float, 6>;

using Table = std::array<std::uint8_t, 256>;

/// Returns a * b + c like LibTorch with FMA: the product is exact in fp64, so it is not rounded.
float multiply_add(float a, float b, float c) {
  return static_cast<float>(static_cast<double>(a) * b + c);
}

/// Clamps to 0–255 and truncates, like torchvision.
std::uint8_t to_byte(float value) {
  return static_cast<std::uint8_t>(std::min(std::max(value, 0.0F), 255.0F));
}

float gray_of(std::uint8_t red, std::uint8_t green, std::uint8_t blue) {
  const float sum = multiply_add(green, 0.587F, static_cast<float>(red) * 0.2989F);
  return std::floor(multiply_add(blue, 0.114F, sum));
}

/// Blends a value with that of a degenerate image, like torchvision; `factor` 1 keeps the value.
struct Blend {
  explicit Blend(float factor)
      : weight(factor), degenerate_weight(static_cast<float>(1.0 - static_cast<double>(factor))) {}

  std::uint8_t operator()(float value, float degenerate) const {
    return to_byte(multiply_add(degenerate, degenerate_weight, value * weight));
  }

  float weight;
  float degenerate_weight;
};

template <class Value>
Table table_of(const Value& value) {
  Table table;
  for (int level = 0; level < 256; ++level) {
    table[static_cast<std::size_t>(level)] = to_byte(value(static_cast<float>(level)));
  }
  return table;
}

void map_levels(const Table& table, const std::uint8_t* in, std::int64_t count, std::uint8_t* out) {
  for (std::int64_t i = 0; i < count; ++i) out[i] = table[in[i]];
}

/// Returns the mean of the image in grayscale.
float mean_of(const Planes& image) {
  const std::int64_t pixels = image.pixels();
  const std::uint8_t* level = image.values;
  const bool is_rgb = image.channels == 3;
  const std::int64_t count = is_rgb ? pixels : image.channels * pixels;
  std::int64_t sum = 0;
  for (std::int64_t i = 0; i < count; ++i, ++level) {
    sum += is_rgb ? static_cast<std::int64_t>(gray_of(*level, level[pixels], level[2 * pixels]))
                  : *level;
  }
  return static_cast<float>(static_cast<double>(sum) / static_cast<double>(count));
}

void saturate(float factor, const Planes& image, std::uint8_t* out) {
  const std::int64_t pixels = image.pixels();
  const Blend blend(factor);
  for (std::int64_t i = 0; i < pixels; ++i) {
    const std::uint8_t* level = image.values + i;
    const float gray = gray_of(*level, level[pixels], level[2 * pixels]);
    for (std::int64_t c = 0; c < 3; ++c) out[i + c * pixels] = blend(level[c * pixels], gray);
  }
}

/// Returns a colour's hue in [0, 1), see torchvision's _rgb_to_hsv.
float hue_of(float red, float green, float blue, float highest, float range) {
  const float divisor = range == 0 ? 1 : range;
  const float r = (highest - red) / divisor;
  const float g = (highest - green) / divisor;
  const float b = (highest - blue) / divisor;
  float hue = g + 4 - r;
  if (highest == green) hue = r + 2 - b;
  if (highest == red) hue = b - g;
  hue = hue * static_cast<float>(1.0 / 6) + 1;
  return hue >= 1 ? hue - 1 : hue;
}

void shift_hue(float shift, const Planes& image, std::uint8_t* out) {
  constexpr float kLevels = 255.999F;
  const std::int64_t pixels = image.pixels();
  for (std::int64_t i = 0; i < pixels; ++i) {
    const auto part = [&](std::int64_t channel) {
      return static_cast<float>(image.values[i + channel * pixels]) * static_cast<float>(1.0 / 255);
    };
    const float red = part(0);
    const float green = part(1);
    const float blue = part(2);
    const float value = std::max({red, green, blue});
    const float range = value - std::min({red, green, blue});
    float hue = hue_of(red, green, blue, value, range) + shift;
    if (hue >= 1) hue -= 1;
    if (hue < 0) hue += 1;
    const float saturation = range / (range == 0 ? 1 : value);
    const float sixth = std::floor(hue * 6);
    const float product = saturation * (hue * 6 - sixth);
    const float rest = 1 - saturation;
    const auto level = [](float fraction) {
      return static_cast<std::uint8_t>(std::min(std::max(fraction, 0.0F), 1.0F) * kLevels);
    };
    const std::uint8_t v = level(value);
    const std::uint8_t p = level(rest * value);
    const std::uint8_t q = level((1 - product) * value);
    const std::uint8_t t = level((product + rest) * value);
    const std::array<std::array<std::uint8_t, 3>, 7> colours{
        {{v, t, p}, {q, v, p}, {p, v, t}, {p, q, v}, {t, p, v}, {v, p, q}, {v, t, p}}};
    for (std::int64_t c = 0; c < 3; ++c) {
      out[i + c * pixels] = colours[static_cast<std::size_t>(sixth)][static_cast<std::size_t>(c)];
    }
  }
}

/// Blends with the image smoothed by a 3x3 kernel of ones with 5 in the middle; keeps the border.
void sharpen(float factor, const Planes& image, std::uint8_t* out) {
  std::memcpy(out, image.values, static_cast<std::size_t>(image.channels * image.pixels()));
  const std::int64_t width = image.width;
  const float smooth_weight = Blend(factor).degenerate_weight;
  for (std::int64_t row = 0; row < image.channels * image.height; ++row) {
    const std::int64_t y = row % image.height;
    if (y == 0 || y == image.height - 1) continue;
    const std::uint8_t* at = image.values + row * width;
    for (std::int64_t x = 1; x < width - 1; ++x) {
      int sum = 4 * at[x];
      for (const std::uint8_t* line : {at - width, at, at + width}) {
        sum += line[x - 1] + line[x] + line[x + 1];
      }
      const int rounded = (2 * sum + 13) / 26;  // sum / 13 is never k + 1/2
      const auto smooth = static_cast<float>(rounded);
      const auto value = static_cast<float>(at[x]);
      out[row * width + x] = to_byte(multiply_add(smooth - value, smooth_weight, value));
    }
  }
}

/// Returns the table that stretches the levels of a plane to 0–255.
Table autocontrast_table(const std::uint8_t* plane, std::int64_t count) {
  const std::span levels(plane, static_cast<std::size_t>(count));
  const int min = std::ranges::min(levels);
  const int max = std::ranges::max(levels);
  const auto first = static_cast<float>(min);
  const float scale = static_cast<float>(max - min) * static_cast<float>(1.0 / 255);
  if (scale == 0) return table_of([](float level) { return level; });
  return table_of([=](float level) { return (level - first) / scale; });
}

/// Returns the table that equalises the histogram of a plane, like Pillow.
Table equalize_table(const std::uint8_t* plane, std::int64_t count) {
  std::array<std::int64_t, 256> histogram{};
  for (std::int64_t i = 0; i < count; ++i) ++histogram[plane[i]];
  const auto last =
      std::find_if(histogram.rbegin(), histogram.rend(), [](auto n) { return n > 0; });
  const std::int64_t step = (count - *last) / 255;
  if (step == 0) return table_of([](float level) { return level; });
  Table table;
  std::int64_t below = 0;
  for (std::size_t level = 0; level < table.size(); ++level) {
    table[level] =
        static_cast<std::uint8_t>(std::min<std::int64_t>((below + step / 2) / step, 255));
    below += histogram[level];
  }
  return table;
}

/// Returns the map of a shear, translation or rotation, or the identity for other operations.
AffineMap affine_map(const data::PictureChange& change, settings::ImageSize size) {
  const auto height = static_cast<double>(size.height);
  const auto width = static_cast<double>(size.width);
  const double by = change.magnitude;
  std::array<double, 6> map{1, 0, 0, 0, 1, 0};
  // A shear keeps the top left corner fixed.
  if (change.operation == kShearX) map = {1, by, by * height / 2, 0, 1, 0};
  if (change.operation == kShearY) map = {1, 0, 0, by, 1, by * width / 2};
  if (change.operation == kTranslateX) map = {1, 0, -by, 0, 1, 0};
  if (change.operation == kTranslateY) map = {1, 0, 0, 0, 1, -by};
  if (change.operation == kRotate) {
    const double angle = by * std::numbers::pi / 180;
    map = {std::cos(angle), -std::sin(angle), 0, std::sin(angle), std::cos(angle), 0};
  }
  AffineMap halves;
  for (std::size_t i = 0; i < map.size(); ++i) {
    halves[i] = static_cast<float>(map[i]) / static_cast<float>(0.5 * (i < 3 ? width : height));
  }
  return halves;
}

/// Writes the changed image to `out`, which may be the input unless the operation is sharpness.
/// Operations with an `affine_map` are not applied. Images with 3 channels are RGB; others are
/// grayscale, and saturation and hue have no effect on them. Computes in the same float precision
/// as torchvision.transforms.v2.functional.
void change_picture(PictureOperation operation, float magnitude, const Planes& image,
                    std::uint8_t* out) {
  const std::int64_t values = image.channels * image.pixels();
  const auto map_values = [&](const auto& value) {
    map_levels(table_of(value), image.values, values, out);
  };
  const auto map_planes = [&](const auto& make_table) {
    for (std::int64_t begin = 0; begin < values; begin += image.pixels()) {
      const std::uint8_t* plane = image.values + begin;
      map_levels(make_table(plane, image.pixels()), plane, image.pixels(), out + begin);
    }
  };
  const bool is_rgb = image.channels == 3;
  if (operation == kBrightness) return map_values([=](float level) { return level * magnitude; });
  if (operation == kContrast) {
    const Blend blend(magnitude);
    const float mean = mean_of(image);
    return map_values([&](float level) { return static_cast<float>(blend(level, mean)); });
  }
  if (operation == kSaturation && is_rgb) return saturate(magnitude, image, out);
  if (operation == kHue && is_rgb) return shift_hue(magnitude, image, out);
  if (operation == kSharpness) return sharpen(magnitude, image, out);
  if (operation == kPosterize) {
    return map_values([=](float level) { return std::floor(level / magnitude) * magnitude; });
  }
  if (operation == kSolarize) {
    return map_values([=](float level) { return level >= magnitude ? 255 - level : level; });
  }
  if (operation == kAutocontrast) return map_planes(autocontrast_table);
  if (operation == kEqualize) return map_planes(equalize_table);
  if (out != image.values) std::memcpy(out, image.values, static_cast<std::size_t>(values));
}

/// Writes the nearest input pixel for each output pixel, or 0 outside the image.
void map_picture(const AffineMap& map, const Planes& image, std::uint8_t* out) {
  const auto height = static_cast<float>(image.height);
  const auto width = static_cast<float>(image.width);
  for (std::int64_t row = 0; row < image.height; ++row) {
    const float y = static_cast<float>(row) + (1 - height) / 2;
    for (std::int64_t column = 0; column < image.width; ++column, ++out) {
      const float x = static_cast<float>(column) + (1 - width) / 2;
      // Same order and rounding as in LibTorch's matrix product and grid_sample.
      const float from_x = multiply_add(y, map[1], x * map[0]) + map[2];
      const float from_y = multiply_add(y, map[4], x * map[3]) + map[5];
      const float left = std::nearbyint(multiply_add(from_x + 1, width / 2, -0.5F));
      const float top = std::nearbyint(multiply_add(from_y + 1, height / 2, -0.5F));
      const bool inside = left >= 0 && left < width && top >= 0 && top < height;
      const std::int64_t from =
          inside ? static_cast<std::int64_t>(top) * image.width + static_cast<std::int64_t>(left)
                 : 0;
      for (std::int64_t c = 0; c < image.channels; ++c) {
        out[c * image.pixels()] = inside ? image.values[c * image.pixels() + from] : 0;
      }
    }
  }
}

constexpr std::array kJitterOperations{kBrightness, kContrast, kSaturation, kHue};
constexpr std::array kTrivialChanges{kBrightness, kSaturation, kContrast,     kSharpness,
                                     kPosterize,  kSolarize,   kAutocontrast, kEqualize};

/// Runs `compute(planes, numbers, out)` for each image of a batch of bytes in host memory, on all
/// threads, and returns the results.
template <class Compute>
at::Tensor compute_on_host(const at::Tensor& images, const at::Tensor& drawn,
                           const Compute& compute) {
  const at::Tensor in = images.contiguous();
  const at::Tensor numbers = drawn.contiguous();
  at::Tensor out = at::empty_like(in);
  const auto* first = in.const_data_ptr<std::uint8_t>();
  auto* first_out = out.mutable_data_ptr<std::uint8_t>();
  const auto* first_number = numbers.const_data_ptr<float>();
  parallel_for(0, in.size(0), 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) {
      const Planes image{first + i * in.stride(0), in.size(1), in.size(2), in.size(3)};
      compute(image, first_number + i * numbers.size(1), first_out + i * in.stride(0));
    }
  });
  return out;
}

/// Resizes each image's window with the operation that torchvision uses, on all threads.
at::Tensor resize_on_host(const at::Tensor& images, const at::Tensor& windows,
                          settings::ImageSize size) {
  const std::array<std::int64_t, 2> sides{size.height, size.width};
  const at::Tensor out =
      at::empty({images.size(0), images.size(1), size.height, size.width}, images.options());
  const at::Tensor numbers = windows.to(at::kLong).contiguous();
  const auto* first = numbers.const_data_ptr<std::int64_t>();
  parallel_for(0, images.size(0), 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) {
      const std::int64_t* window = first + 4 * i;
      const at::Tensor part =
          images.narrow(0, i, 1).narrow(2, window[0], window[2]).narrow(3, window[1], window[3]);
      at::Tensor place = out.narrow(0, i, 1);
      if (size.width == 1) {  // LibTorch mixes up the channels of bytes
        place.copy_(resized(part, size));
      } else {
        at::_upsample_bilinear2d_aa_out(place, part, sides, /*align_corners=*/false);
      }
    }
  });
  return out;
}

PictureOperation operation_of(const float* numbers) {
  return static_cast<PictureOperation>(static_cast<int>(numbers[0]));
}

/// Returns the weights [n,1,count,size] that resample part of a line of `size` pixels to `count`
/// pixels. The part begins at `first` [n] and has `extent` [n] pixels.
at::Tensor line_weights(const at::Tensor& first, const at::Tensor& extent, std::int64_t size,
                        std::int64_t count) {
  const at::Tensor length = extent.view({-1, 1, 1, 1});
  const at::Tensor scale = length / static_cast<double>(count);
  const at::Tensor center = (at::arange(count, first.options()) + 0.5).view({-1, 1}) * scale;
  const at::Tensor x = at::arange(size, first.options()) + 0.5 - first.view({-1, 1, 1, 1});
  const at::Tensor near = (1 - (x - center).abs() / scale.clamp_min(1)).clamp_min(0);
  const at::Tensor weights = near * (x > 0).logical_and(x < length);
  return weights / weights.sum(3, /*keepdim=*/true);
}

// The operations of torchvision.transforms.v2.functional for a whole batch. `images` are byte
// values in fp32 [n,C,H,W], `magnitude` is [n,1,1,1]. Results are clamped and truncated later.

at::Tensor gray_of_batch(const at::Tensor& images) {
  if (images.size(1) != 3) return images;
  return (images.narrow(1, 0, 1) * 0.2989 + images.narrow(1, 1, 1) * 0.587 +
          images.narrow(1, 2, 1) * 0.114)
      .floor();
}

at::Tensor blend_batch(const at::Tensor& images, const at::Tensor& degenerate,
                       const at::Tensor& factor) {
  return images * factor + degenerate * (1 - factor);
}

at::Tensor shift_hues(const at::Tensor& images, const at::Tensor& shift) {
  const at::Tensor parts = images * (1.0 / 255);
  const at::Tensor value = parts.amax({1}, /*keepdim=*/true);
  const at::Tensor range = value - parts.amin({1}, /*keepdim=*/true);
  const at::Tensor one = at::ones_like(range);
  const at::Tensor is_gray = range == 0;
  const at::Tensor distance = (value - parts) / at::where(is_gray, one, range);
  const at::Tensor r = distance.narrow(1, 0, 1);
  const at::Tensor g = distance.narrow(1, 1, 1);
  const at::Tensor b = distance.narrow(1, 2, 1);
  const at::Tensor hue = at::where(value == parts.narrow(1, 0, 1), b - g,
                                   at::where(value == parts.narrow(1, 1, 1), r + 2 - b, g + 4 - r));
  const at::Tensor sixths = (hue * (1.0 / 6) + shift).remainder(1) * 6;
  const at::Tensor rise = range / at::where(is_gray, one, value) * value;
  const at::Tensor offset = at::arange(5, 0, -2, images.options()).view({1, 3, 1, 1});
  const at::Tensor k = (sixths + offset).remainder(6);
  return (value - rise * k.minimum(4 - k).clamp(0, 1)) * 255.999;
}

at::Tensor sharpen_batch(const at::Tensor& images, const at::Tensor& factor) {
  const std::int64_t height = images.size(2);
  const std::int64_t width = images.size(3);
  if (height <= 2 || width <= 2) return images;
  const at::Tensor middle = images.narrow(2, 1, height - 2).narrow(3, 1, width - 2);
  const at::Tensor sum = at::avg_pool2d(images, {3, 3}, {1, 1}, {0, 0}, /*ceil_mode=*/false,
                                        /*count_include_pad=*/false, /*divisor_override=*/1);
  const at::Tensor smooth = ((sum + 4 * middle) / 13).round();
  at::Tensor result = images.clone();
  result.narrow(2, 1, height - 2)
      .narrow(3, 1, width - 2)
      .copy_(middle + (smooth - middle) * (1 - factor));
  return result;
}

at::Tensor autocontrast_batch(const at::Tensor& images) {
  const at::Tensor min = images.amin({2, 3}, /*keepdim=*/true);
  const at::Tensor range = images.amax({2, 3}, /*keepdim=*/true) - min;
  return at::where(range == 0, images, (images - min) / (range * (1.0 / 255)));
}

at::Tensor equalize_batch(const at::Tensor& images) {
  const at::Tensor levels = images.to(at::kLong).flatten(2);
  const at::Tensor histogram = at::zeros({images.size(0), images.size(1), 256}, levels.options())
                                   .scatter_add_(2, levels, at::ones_like(levels));
  const at::Tensor last = (levels == levels.amax({2}, true)).sum(2, /*keepdim=*/true);
  const at::Tensor step = (levels.size(2) - last).floor_divide(255);
  const at::Tensor below = histogram.cumsum(2) - histogram;
  const at::Tensor table =
      (below + step.floor_divide(2)).floor_divide(step.clamp_min(1)).clamp_max(255);
  const at::Tensor equalized = at::where(step == 0, levels, table.gather(2, levels));
  return equalized.view(images.sizes()).to(at::kFloat);
}

at::Tensor change_batch(PictureOperation operation, const at::Tensor& images,
                        const at::Tensor& magnitude) {
  const bool is_rgb = images.size(1) == 3;
  if (operation == kBrightness) return images * magnitude;
  if (operation == kContrast) {
    const at::Tensor mean = gray_of_batch(images).mean({1, 2, 3}, /*keepdim=*/true);
    return blend_batch(images, mean, magnitude);
  }
  if (operation == kSaturation && is_rgb) {
    return blend_batch(images, gray_of_batch(images), magnitude);
  }
  if (operation == kHue && is_rgb) return shift_hues(images, magnitude);
  if (operation == kSharpness) return sharpen_batch(images, magnitude);
  if (operation == kPosterize) return (images / magnitude).floor() * magnitude;
  if (operation == kSolarize) return at::where(images >= magnitude, 255 - images, images);
  if (operation == kAutocontrast) return autocontrast_batch(images);
  return operation == kEqualize ? equalize_batch(images) : images;
}

/// Changes each image by the operation and magnitude in columns 0 and 1 of `drawn`; operations that
/// are not in `possible` change nothing.
at::Tensor change_tensors(const at::Tensor& images, const at::Tensor& drawn,
                          std::span<const PictureOperation> possible) {
  const at::Tensor operations = drawn.select(1, 0).view({-1, 1, 1, 1});
  const at::Tensor magnitude = drawn.select(1, 1).view({-1, 1, 1, 1});
  const at::Tensor values = images.to(at::kFloat);
  at::Tensor result = values;
  for (const PictureOperation operation : possible) {
    result = at::where(operations == static_cast<int>(operation),
                       change_batch(operation, values, magnitude), result);
  }
  return result.clamp(0, 255).to(at::kByte);
}

/// Applies the affine maps in columns 2 to 7 of `drawn`, with nearest-neighbour sampling.
at::Tensor map_tensors(const at::Tensor& images, const at::Tensor& drawn) {
  constexpr std::int64_t kNearest = 1;
  constexpr std::int64_t kZeros = 0;
  const std::int64_t height = images.size(2);
  const std::int64_t width = images.size(3);
  const auto centred = [&drawn](std::int64_t count) {
    return at::arange(count, drawn.options()) + 0.5 * static_cast<double>(1 - count);
  };
  const at::Tensor x = centred(width);
  const at::Tensor y = centred(height).view({-1, 1});
  const auto from = [&](std::int64_t column) {
    const auto factor = [&](std::int64_t i) {
      return drawn.select(1, column + i).view({-1, 1, 1});
    };
    return x * factor(0) + y * factor(1) + factor(2);
  };
  const at::Tensor grid = at::stack({from(2), from(5)}, 3);
  return at::grid_sampler(images.to(at::kFloat), grid, kNearest, kZeros, /*align_corners=*/false)
      .to(at::kByte);
}

}  // namespace

at::Tensor resize_tensors(const at::Tensor& images, const at::Tensor& windows,
                          settings::ImageSize size) {
  const at::Tensor rows =
      line_weights(windows.select(1, 0), windows.select(1, 2), images.size(2), size.height);
  const at::Tensor columns =
      line_weights(windows.select(1, 1), windows.select(1, 3), images.size(3), size.width);
  return cast_like(images, rows.matmul(images.to(at::kFloat)).matmul(columns.transpose(2, 3)));
}

at::Tensor jitter_tensors(const at::Tensor& images, const at::Tensor& drawn) {
  at::Tensor result = images;
  for (std::int64_t column = 0; column < drawn.size(1); column += 2) {
    result = change_tensors(result, drawn.narrow(1, column, 2), kJitterOperations);
  }
  return result;
}

at::Tensor trivial_augment_tensors(const at::Tensor& images, const at::Tensor& drawn) {
  if (images.size(0) == 0) return images;
  const at::Tensor operations = drawn.select(1, 0).view({-1, 1, 1, 1});
  const at::Tensor is_mapped = (operations >= static_cast<int>(kShearX))
                                   .logical_and(operations <= static_cast<int>(kRotate));
  const at::Tensor mapped = at::where(is_mapped, map_tensors(images, drawn), images);
  return change_tensors(mapped, drawn, kTrivialChanges);
}

Augmentation augmentation_of(const settings::RandomResizedCropOptions& options,
                             settings::ImageSize size, at::Device /*device*/) {
  Augmentation entry{4};
  entry.draw = [options, size](const data::EntryDraws& draws, float* out) {
    const data::PixelBox window = draws.resized_crop(options, size);
    write_numbers(out, window.top, window.left, window.height, window.width);
  };
  entry.apply = [wanted = options.size](const at::Tensor& images, const at::Tensor& drawn) {
    return images.is_cpu() ? resize_on_host(images, drawn, wanted)
                           : resize_tensors(images, drawn, wanted);
  };
  if (options.size == size) return entry;
  // Centre crop, like torchvision's CenterCrop; from smaller images, cuts the largest window with
  // the same aspect ratio and resizes it.
  entry.apply_to_test = [size, wanted = options.size,
                         middle =
                             settings::centre_window(options, size)](const at::Tensor& images) {
    using settings::centre_begin;
    const at::Tensor cut = images.narrow(2, centre_begin(size.height, middle.height), middle.height)
                               .narrow(3, centre_begin(size.width, middle.width), middle.width)
                               .contiguous();
    return middle == wanted ? cut : resized(cut, wanted);
  };
  return entry;
}

Augmentation augmentation_of(const settings::ColorJitterOptions& options, settings::ImageSize size,
                             at::Device /*device*/) {
  Augmentation entry{8};
  entry.draw = [options](const data::EntryDraws& draws, float* out) {
    for (const data::PictureChange& change : draws.jitter(options)) {
      out = write_numbers(out, change.operation, change.magnitude);
    }
  };
  entry.apply = [size](const at::Tensor& images, const at::Tensor& drawn) {
    if (!images.is_cpu()) return jitter_tensors(images, drawn);
    return compute_on_host(images, drawn,
                           [](Planes image, const float* numbers, std::uint8_t* out) {
                             for (const float* end = numbers + 8; numbers != end; numbers += 2) {
                               change_picture(operation_of(numbers), numbers[1], image, out);
                               image.values = out;
                             }
                           });
  };
  return entry;
}

Augmentation augmentation_of(const settings::TrivialAugmentOptions& /*options*/,
                             settings::ImageSize size, at::Device /*device*/) {
  Augmentation entry{8};
  entry.draw = [size](const data::EntryDraws& draws, float* out) {
    const data::PictureChange change = draws.trivial_augment();
    std::ranges::copy(affine_map(change, size),
                      write_numbers(out, change.operation, change.magnitude));
  };
  entry.apply = [size](const at::Tensor& images, const at::Tensor& drawn) {
    if (!images.is_cpu()) return trivial_augment_tensors(images, drawn);
    return compute_on_host(images, drawn,
                           [](const Planes& image, const float* numbers, std::uint8_t* out) {
                             const PictureOperation operation = operation_of(numbers);
                             if (operation < kShearX || operation > kRotate)
                               return change_picture(operation, numbers[1], image, out);
                             AffineMap map;
                             std::copy_n(numbers + 2, map.size(), map.begin());
                             map_picture(map, image, out);
                           });
  };
  return entry;
}

}  // namespace mnist_train::loader
