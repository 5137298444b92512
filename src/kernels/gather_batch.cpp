#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/empty_strided.h>

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

}  // namespace mnist_train::kernels
