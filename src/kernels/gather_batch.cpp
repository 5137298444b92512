#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/empty_strided.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/tensor.h>

#include <algorithm>
#include <vector>

#include "kernels/launch.h"
#include "kernels/operations.h"

namespace mnist_train::kernels {

namespace {

/// Blocks per sample, and threads per block.
struct Division {
  std::int64_t parts;
  unsigned threads;

  accelerator::Grid grid(std::int64_t samples) const {
    return {static_cast<unsigned>(samples * parts), threads};
  }
};

constexpr std::int64_t kMostParts = 8;  // each part counts its arrival if positions advance

Division divide(std::int64_t units, std::int64_t units_per_thread) {
  const auto up = [](auto a, auto b) { return std::max<std::int64_t>(1, ceil_divide(a, b)); };
  const std::int64_t parts = std::min(up(units, units_per_thread * kThreads), kMostParts);
  const std::int64_t warps = up(up(units, parts), kWarp);
  return {parts, static_cast<unsigned>(std::min<std::int64_t>(warps * kWarp, kThreads))};
}

/// Returns the number of bytes per copy: 16, or fewer if alignment or sizes require it.
std::int64_t copied_at_once(const at::Tensor& from, const at::Tensor& to, std::int64_t row_bytes) {
  std::int64_t bytes = 16;
  while (!is_aligned(from, bytes) || !is_aligned(to, bytes) || row_bytes % bytes != 0) bytes /= 2;
  return bytes;
}

MadeBatch empty_batch(const BatchSamples& samples) {
  MadeBatch made;
  made.labels = at::empty({samples.count}, samples.labels.options());
  if (samples.seeds.defined()) made.seeds = at::empty_like(made.labels);
  return made;
}

std::int64_t all_positions(const BatchSamples& samples) {
  return samples.positions.defined() ? samples.positions.numel() : 0;
}

}  // namespace

MadeBatch gather_rows(const BatchSamples& samples) {
  MadeBatch made = empty_batch(samples);
  std::vector<std::int64_t> sizes = samples.rows.sizes().vec();
  sizes[0] = samples.count;
  made.images = at::empty(sizes, samples.rows.options());
  const std::int64_t row_bytes =
      samples.rows.stride(0) * static_cast<std::int64_t>(samples.rows.element_size());
  const std::int64_t unit = copied_at_once(samples.rows, made.images, row_bytes);
  const Division division = divide(row_bytes / unit, 4);
  launch("gather_rows", division.grid(samples.count), samples.rows, row_bytes, as_int(unit),
         as_int(division.parts), samples.labels, samples.order, samples.seeds, samples.positions,
         all_positions(samples), samples.first, samples.advance, made.images, made.labels,
         made.seeds, arrived_blocks());
  return made;
}

MadeBatch gather_pixels(const BatchSamples& samples, const PixelMap& map, at::ScalarType type) {
  MadeBatch made = empty_batch(samples);
  if (map.mixed_before >= 0) {
    made.other_labels = at::empty_like(made.labels);
    made.weights = at::empty({samples.count}, map.drawn.options());
  }
  const std::int64_t channels = samples.rows.stride(0) / (map.stored_height * map.stored_width);
  const std::int64_t pixels = map.height * map.width;
  made.images = at::empty_strided({samples.count, channels, map.height, map.width},
                                  {channels * pixels, 1, map.width * channels, channels},
                                  samples.rows.options().dtype(type));
  const std::int64_t steps = map.steps.defined() ? map.steps.size(0) : 0;
  const std::int64_t table_step = map.tables.size(0) > 1 ? map.tables.stride(0) : 0;
  const Division division = divide(pixels, 1);
  launch(name_for("gather_pixels", type), division.grid(samples.count), samples.rows,
         as_int(channels), as_int(map.stored_height), as_int(map.stored_width), as_int(map.height),
         as_int(map.width), map.steps, as_int(steps), as_int(map.mixed_before), map.mixes_bytes,
         as_int(map.normalized_before), as_int(map.weight_column), map.tables, as_int(table_step),
         map.drawn, map.drawn.defined() ? map.drawn.size(1) : 0, as_int(division.parts),
         samples.labels, samples.order, samples.seeds, samples.positions, all_positions(samples),
         samples.first, samples.advance, made.images, made.labels, made.other_labels, made.weights,
         made.seeds, arrived_blocks());
  return made;
}

namespace {

constexpr std::int64_t kKnownImages = 9;
constexpr std::int64_t kKnownSide = 8;
constexpr std::int64_t kKnownPadding = 2;
constexpr std::int64_t kKnownCount = 6;
constexpr std::int64_t kKnownAdvance = 2;

/// A known case on the host, with images of bytes.
BatchSamples known_samples() {
  BatchSamples samples{
      .count = kKnownCount,
      .rows = known_values({kKnownImages, kKnownSide * kKnownSide}).abs().mul(255).to(at::kByte),
      .labels = at::arange(kKnownImages, at::kLong).mul(7)};
  samples.order = at::arange(kKnownImages, at::kLong).mul(4).remainder(kKnownImages);
  samples.positions = at::arange(kKnownCount + 1, at::kLong).add(1);
  samples.advance = kKnownAdvance;
  return samples;
}

BatchSamples on_device(BatchSamples samples, const Agreement& agreement) {
  for (at::Tensor* tensor : {&samples.rows, &samples.labels, &samples.order, &samples.positions}) {
    *tensor = agreement.here(*tensor);
  }
  return samples;
}

/// Applies the map of `check_pixels` to known samples: pads, crops, flips, mixes and normalises.
at::Tensor known_pixels(const BatchSamples& samples, const at::Tensor& drawn,
                        const at::Tensor& table) {
  std::vector<at::Tensor> windows;
  for (std::int64_t i = 0; i <= kKnownCount; ++i) {
    const at::Tensor numbers = drawn[i + 1];
    const at::Tensor sample = samples.rows[samples.order[i + 1].item<std::int64_t>()];
    const at::Tensor window =
        at::constant_pad_nd(sample.view({kKnownSide, kKnownSide}),
                            {kKnownPadding, kKnownPadding, kKnownPadding, kKnownPadding})
            .narrow(0, numbers[0].item<std::int64_t>(), kKnownSide)
            .narrow(1, numbers[1].item<std::int64_t>(), kKnownSide);
    windows.push_back(numbers[2].item<float>() != 0 ? window.flip(1) : window);
  }
  const at::Tensor images = at::stack(windows).to(at::kFloat);
  const at::Tensor weights = drawn.select(1, 3).narrow(0, 1, kKnownCount).view({-1, 1, 1});
  const at::Tensor mixed =
      weights * images.narrow(0, 0, kKnownCount) + (1 - weights) * images.narrow(0, 1, kKnownCount);
  return table.index_select(0, mixed.to(at::kByte).to(at::kLong).view(-1))
      .view({kKnownCount, 1, kKnownSide, kKnownSide});
}

void check_pixels(at::ScalarType type, Agreement& agreement) {
  const BatchSamples host = known_samples();
  const at::Tensor numbers = known_values({kKnownImages, 4}).abs();
  const at::Tensor corners = numbers.narrow(1, 0, 2).mul(2 * kKnownPadding + 1).floor();
  const at::Tensor drawn = at::cat(
      {corners, numbers.narrow(1, 2, 1).gt(0.5).to(at::kFloat), numbers.narrow(1, 3, 1)}, 1);
  const at::Tensor table = known_values({256});
  const at::Tensor steps =
      at::tensor({static_cast<int>(PixelStep::kCrop), 0, as_int(kKnownSide), as_int(kKnownSide),
                  as_int(kKnownPadding), static_cast<int>(PixelStep::kFlip), 2, as_int(kKnownSide),
                  as_int(kKnownSide), 0},
                 at::kInt);
  PixelMap map;
  map.steps = agreement.here(steps.view({2, 5}));
  map.stored_height = map.stored_width = map.height = map.width = kKnownSide;
  map.mixed_before = map.normalized_before = 2;
  map.mixes_bytes = true;
  map.weight_column = 3;
  map.tables = agreement.here(table.view({1, 256}));
  map.drawn = agreement.here(drawn);
  const MadeBatch made = gather_pixels(on_device(host, agreement), map, type);
  agreement.add("pixels", made.images, known_pixels(host, drawn, table), type);
  agreement.add("weights", made.weights, drawn.select(1, 3).narrow(0, 1, kKnownCount), at::kFloat);
}

}  // namespace

void check_gather_batch(Agreement& agreement) {
  const BatchSamples host = known_samples();
  const at::Tensor chosen = host.order.index_select(0, host.positions.narrow(0, 0, kKnownCount));
  const BatchSamples here = on_device(host, agreement);
  const MadeBatch made = gather_rows(here);
  agreement.add("rows", made.images, host.rows.index_select(0, chosen), at::kFloat);
  agreement.add("labels", made.labels, host.labels.index_select(0, chosen), at::kFloat);
  agreement.add("positions", here.positions, host.positions.add(kKnownAdvance), at::kFloat);
  for (const auto type : {at::kFloat, at::kBFloat16}) check_pixels(type, agreement);
}

}  // namespace mnist_train::kernels
