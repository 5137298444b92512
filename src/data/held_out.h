#pragma once

#include <cstdint>
#include <vector>

#include "data/image_source.h"

namespace mnist_train::data {

/// Samples of a view by their positions, ascending.
struct Drawn {
  std::vector<std::int64_t> taken;
  std::vector<std::int64_t> left;
  std::vector<std::int32_t> single_classes{};  // of which nothing was taken
};

/// Draws a fraction of each class of the samples at positions `among`. Within a class, samples are
/// sorted by the SHA-256 of `seed:path` (or `seed:number`, if they have no paths), ascending, and
/// the first max(1, round(n × fraction)) of n are taken, but not the last one, and none of a single
/// sample. Halves are rounded up. So a sample that is added or removed moves few others.
Drawn draw_fraction(const SampleView& samples, const std::vector<std::int64_t>& among,
                    double fraction, std::int64_t seed);

/// Draws `limit` samples, at most all, in the same order. Each class has a share in proportion to
/// its size, by largest remainders, and at least one sample if the limit allows it.
Drawn draw_limit(const SampleView& samples, const std::vector<std::int64_t>& among,
                 std::int64_t limit, std::int64_t seed);

}  // namespace mnist_train::data
