#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>

#include <algorithm>
#include <vector>

#include "kernels/launch.h"
#include "kernels/operations.h"

namespace mnist_train::kernels {

GatheredRows gather_rows(const BatchSamples& samples) {
  std::vector<std::int64_t> sizes = samples.rows.sizes().vec();
  sizes[0] = samples.count;
  GatheredRows result{at::empty(sizes, samples.rows.options()),
                      at::empty({samples.count}, samples.labels.options())};
  if (samples.seeds.defined()) result.seeds = at::empty_like(result.labels);
  const std::int64_t row_bytes =
      samples.rows.stride(0) * static_cast<std::int64_t>(samples.rows.element_size());
  const std::int64_t unit = access_bytes(row_bytes, {samples.rows, result.images});
  // Each sample has few blocks, because each block increments a counter if positions advance.
  constexpr std::int64_t kUnitsPerThread = 4;
  constexpr std::int64_t kMaxParts = 8;
  const std::int64_t units = row_bytes / unit;
  const std::int64_t parts =
      std::clamp<std::int64_t>(ceil_divide(units, kUnitsPerThread * kThreads), 1, kMaxParts);
  const std::int64_t warps = ceil_divide(ceil_divide(units, parts), kWarp);
  const auto threads =
      static_cast<unsigned>(std::clamp<std::int64_t>(warps * kWarp, kWarp, kThreads));
  launch("gather_rows", {static_cast<unsigned>(samples.count * parts), threads}, samples.rows,
         row_bytes, as_int(unit), as_int(parts), samples.labels, samples.order, samples.seeds,
         samples.positions, samples.first, samples.advance, result.images, result.labels,
         result.seeds, arrival_counters());
  return result;
}

}  // namespace mnist_train::kernels
