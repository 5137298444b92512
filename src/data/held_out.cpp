#include "data/held_out.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <string>
#include <utility>

#include "base/hash.h"
#include "data/sampler.h"

namespace mnist_train::data {

namespace {

using Positions = std::vector<std::int64_t>;

std::map<std::int32_t, Positions> by_class(const SampleView& samples, const Positions& among) {
  std::map<std::int32_t, Positions> classes;
  for (const std::int64_t position : among) classes[samples.label(position)].push_back(position);
  return classes;
}

/// Moves the `count` samples with the lowest hashes to the front.
void sort_by_hash(const SampleView& samples, Positions& positions, std::int64_t count,
                  std::int64_t seed) {
  const std::string begin = std::to_string(seed) + ":";
  std::vector<std::pair<Sha256::Digest, std::int64_t>> drawn;
  drawn.reserve(positions.size());
  for (const std::int64_t position : positions) {
    const std::string text = begin + samples.drawn_by(position);
    Sha256 hasher;
    hasher.update(text.data(), text.size());
    drawn.emplace_back(hasher.digest(), position);
  }
  std::ranges::partial_sort(drawn, drawn.begin() + count);
  for (std::size_t i = 0; i < positions.size(); ++i) positions[i] = drawn[i].second;
}

/// Takes the first `shares[i]` samples of the i-th class.
Drawn take(const SampleView& samples, std::map<std::int32_t, Positions> classes,
           const Positions& shares, std::int64_t seed) {
  Drawn drawn;
  auto share = shares.begin();
  for (auto& [label, positions] : classes) {
    const std::int64_t count = *share++;
    if (count > 0) sort_by_hash(samples, positions, count, seed);
    drawn.taken.insert(drawn.taken.end(), positions.begin(), positions.begin() + count);
    drawn.left.insert(drawn.left.end(), positions.begin() + count, positions.end());
  }
  std::ranges::sort(drawn.taken);
  std::ranges::sort(drawn.left);
  return drawn;
}

}  // namespace

Drawn draw_fraction(const SampleView& samples, const Positions& among, double fraction,
                    std::int64_t seed) {
  auto classes = by_class(samples, among);
  Positions shares;
  std::vector<std::int32_t> single_classes;
  for (const auto& [label, positions] : classes) {
    if (positions.size() == 1) single_classes.push_back(label);
    const auto count = static_cast<std::int64_t>(positions.size());
    const std::int64_t share = std::llround(static_cast<double>(count) * fraction);
    shares.push_back(count < 2 ? 0 : std::clamp<std::int64_t>(share, 1, count - 1));
  }
  Drawn drawn = take(samples, std::move(classes), shares, seed);
  drawn.single_classes = std::move(single_classes);
  return drawn;
}

Drawn draw_limit(const SampleView& samples, const Positions& among, std::int64_t limit,
                 std::int64_t seed) {
  auto classes = by_class(samples, among);
  std::vector<double> sizes;
  for (const auto& [label, positions] : classes) {
    sizes.push_back(static_cast<double>(positions.size()));
  }
  return take(samples, std::move(classes), apportion(limit, sizes), seed);
}

}  // namespace mnist_train::data
