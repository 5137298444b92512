#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>

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

}  // namespace

GatheredRows gather_rows(const BatchSamples& samples) {
  std::vector<std::int64_t> sizes = samples.rows.sizes().vec();
  sizes[0] = samples.count;
  GatheredRows made{at::empty(sizes, samples.rows.options()),
                    at::empty({samples.count}, samples.labels.options())};
  if (samples.seeds.defined()) made.seeds = at::empty_like(made.labels);
  const std::int64_t row_bytes =
      samples.rows.stride(0) * static_cast<std::int64_t>(samples.rows.element_size());
  const std::int64_t unit = bytes_at_once(row_bytes, {samples.rows, made.images});
  const Division division = divide(row_bytes / unit, 4);
  launch("gather_rows", division.grid(samples.count), samples.rows, row_bytes, as_int(unit),
         as_int(division.parts), samples.labels, samples.order, samples.seeds, samples.positions,
         samples.first, samples.advance, made.images, made.labels, made.seeds, arrived_blocks());
  return made;
}

}  // namespace mnist_train::kernels
