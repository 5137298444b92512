#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "data/image_set.h"

namespace mnist_train::data {

/// A training set and what was held out of it.
struct HeldOut {
  ImageSet train;
  ImageSet validation;
};

/// How many of `count` samples a share holds out. Throws Error(kData) when that leaves one side
/// empty.
std::int64_t held_out_count(std::int64_t count, double share);

/// Which of `count` samples a share holds out; it follows from the seed alone.
std::vector<bool> held_out(std::int64_t count, double share, std::int64_t seed);

/// Moves a share of the samples of `set`, whose memory `images` and `labels` are, behind the
/// others; both sides keep their order.
HeldOut hold_out(const ImageSet& set, std::span<std::uint8_t> images,
                 std::span<std::uint8_t> labels, double share, std::int64_t seed);

}  // namespace mnist_train::data
