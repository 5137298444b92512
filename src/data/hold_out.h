#pragma once

#include <cstdint>
#include <vector>

namespace mnist_train::data {

/// The positions in a training set that are trained on, and those that are held out for validation;
/// both ascend.
struct HoldOut {
  std::vector<std::int64_t> trained_on;
  std::vector<std::int64_t> held_out;
};

/// Returns how many of `count` samples a fraction holds out. Throws Error(kData) when that leaves
/// one side empty.
std::int64_t held_out_count(std::int64_t count, double fraction);

/// Draws which of `count` samples a fraction holds out; it follows from the seed alone. Throws
/// Error(kData) as held_out_count does.
HoldOut hold_out(std::int64_t count, double fraction, std::int64_t seed);

}  // namespace mnist_train::data
