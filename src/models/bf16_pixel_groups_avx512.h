#pragma once

// Only for sources that are compiled with AVX-512 switched on, like lanes_avx512.h.

#include "models/pairs_avx512.h"

/// Output pixels of a convolution that are computed together, and what is under them.
namespace mnist_train::models::avx512 {

/// Output pixels of a row that are computed together, as if they were one with all their channels:
/// the run under them is longer, but few channels leave fewer lanes empty. There are two of them
/// only where one window of the pooling has both, so that a NaN reaches no more of its outputs.
struct PixelGroup {
  std::int64_t pixels, run, channels;
};

inline PixelGroup group_of(const ConvolutionShape& s) {
  const PixelGroup one{1, s.run(), s.out_channels};
  const PixelGroup two{2, s.run() + s.in_channels, 2 * s.out_channels};
  const auto work = [](const PixelGroup& group) {
    return pairs_of(group.run) * vectors(group.channels);
  };
  return s.out_width() % 2 == 0 && work(two) < 2 * work(one) ? two : one;
}

inline GroupPairs input_pairs(const ConvolutionShape& s) {
  const PixelGroup group = group_of(s);
  return {s.height, s.out_width() / group.pixels, s.width * s.in_channels,
          group.pixels * s.in_channels, group.run};
}

inline GroupPairs gradient_pairs(const ConvolutionShape& s) {
  const PixelGroup group = group_of(s);
  return {s.out_height(), s.out_width() / group.pixels, s.out_width() * s.out_channels,
          group.channels, group.channels};
}

}  // namespace mnist_train::models::avx512
