#pragma once

#include <cstdint>

namespace mnist_train::models {

/// Kernels for one output row of `relu_max_pool`, channels last. `Bits` holds the bits of a value:
/// int32 for fp32, int16 for bf16. Positive floats have the order of their bits and negative ones
/// are negative integers, so ReLU and maximum are integer maxima; NaNs of both signs count as the
/// largest value.
template <class Bits>
struct PoolRows {
  /// Reads 2 * width * channels values of each of the input rows `top` and `bottom`. Writes width *
  /// channels values, and for each the `choice`: the index of its largest input (0 and 1 in `top`,
  /// 2 and 3 in `bottom`, the first of equal ones), or 4 if none is positive.
  void (*pool)(const Bits* top, const Bits* bottom, Bits* out, std::uint8_t* choice,
               std::int64_t width, std::int64_t channels);
  /// The backward pass: writes 2 * width * channels values to each of the rows `top` and `bottom`,
  /// the gradient at the position of `choice` and 0 elsewhere.
  void (*spread)(const Bits* gradient, const std::uint8_t* choice, Bits* top, Bits* bottom,
                 std::int64_t width, std::int64_t channels);
};

/// Returns the kernels for any processor.
template <class Bits>
const PoolRows<Bits>& portable_pool_rows();

/// Returns the kernels for AVX-512 (F, BW, VL), or null if the processor lacks it.
template <class Bits>
const PoolRows<Bits>* avx512_pool_rows();

/// Returns the fastest kernels for this processor.
template <class Bits>
const PoolRows<Bits>& pool_rows() {
  static const PoolRows<Bits>* fastest = avx512_pool_rows<Bits>();
  return fastest != nullptr ? *fastest : portable_pool_rows<Bits>();
}

/// Size of one input image [height,width,channels] of the pooling.
struct PooledImage {
  std::int64_t height, width, channels;

  std::int64_t in_row() const { return width * channels; }
  std::int64_t in_size() const { return height * in_row(); }
  std::int64_t out_row() const { return width / 2 * channels; }
  std::int64_t out_size() const { return height / 2 * out_row(); }
};

/// Runs `PoolRows::pool` over a whole image.
template <class Bits>
void pool_image(const PooledImage& image, const Bits* in, Bits* out, std::uint8_t* choice) {
  for (std::int64_t y = 0; y < image.height / 2; ++y) {
    const Bits* const top = in + 2 * y * image.in_row();
    pool_rows<Bits>().pool(top, top + image.in_row(), out + y * image.out_row(),
                           choice + y * image.out_row(), image.width / 2, image.channels);
  }
}

/// Runs `PoolRows::spread` over a whole image. Leaves an odd last row or column of `into` as it is.
template <class Bits>
void spread_image(const PooledImage& image, const Bits* gradient, const std::uint8_t* choice,
                  Bits* into) {
  for (std::int64_t y = 0; y < image.height / 2; ++y) {
    Bits* const top = into + 2 * y * image.in_row();
    pool_rows<Bits>().spread(gradient + y * image.out_row(), choice + y * image.out_row(), top,
                             top + image.in_row(), image.width / 2, image.channels);
  }
}

}  // namespace mnist_train::models
