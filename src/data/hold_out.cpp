#include "data/hold_out.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "base/error.h"
#include "data/sampler.h"

namespace mnist_train::data {

namespace {

constexpr std::int64_t kBeforeTheFirstEpoch = -1;

/// Moves the marked items, of `size` bytes each, behind the others.
void partition(std::span<std::uint8_t> bytes, std::int64_t size, const std::vector<bool>& marked) {
  std::vector<std::uint8_t> behind;
  auto out = bytes.begin();
  for (std::size_t i = 0; i < marked.size(); ++i) {
    const auto item = bytes.begin() + static_cast<std::ptrdiff_t>(i) * size;
    if (marked[i]) {
      behind.insert(behind.end(), item, item + size);
    } else {
      out = std::copy(item, item + size, out);
    }
  }
  std::copy(behind.begin(), behind.end(), out);
}

ImageSet part(const ImageSet& set, Range range) {
  ImageSet result = set;
  const auto size = static_cast<std::size_t>(set.bytes_per_image());
  const auto begin = static_cast<std::size_t>(range.begin);
  result.count = range.size();
  result.images = set.images.subspan(begin * size, static_cast<std::size_t>(range.size()) * size);
  result.labels = set.labels.subspan(begin, static_cast<std::size_t>(range.size()));
  return result;
}

}  // namespace

std::int64_t held_out_count(std::int64_t count, double share) {
  const std::int64_t held = std::llround(share * static_cast<double>(count));
  if (share > 0 && (held == 0 || held == count)) {
    throw Error(ExitCode::kData, "data.validation holds out " + std::to_string(held) + " of " +
                                     std::to_string(count) +
                                     " training samples; both sides need at least one");
  }
  return held;
}

std::vector<bool> held_out(std::int64_t count, double share, std::int64_t seed) {
  const std::int64_t held = held_out_count(count, share);
  std::vector<bool> marked(static_cast<std::size_t>(count));
  if (held == 0) return marked;
  const auto order = epoch_permutation(count, seed, kBeforeTheFirstEpoch);
  for (std::size_t i = 0; i < static_cast<std::size_t>(held); ++i) {
    marked[static_cast<std::size_t>(order[i])] = true;
  }
  return marked;
}

HeldOut hold_out(const ImageSet& set, std::span<std::uint8_t> images,
                 std::span<std::uint8_t> labels, double share, std::int64_t seed) {
  const std::vector<bool> marked = held_out(set.count, share, seed);
  partition(images, set.bytes_per_image(), marked);
  partition(labels, 1, marked);
  const std::int64_t kept = set.count - held_out_count(set.count, share);
  return {part(set, {0, kept}), part(set, {kept, set.count})};
}

}  // namespace mnist_train::data
