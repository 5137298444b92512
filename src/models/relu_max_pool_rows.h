#pragma once

#include <cstdint>

namespace mnist_train::models {

/// One output row of `relu_max_pool`, channels last, values given by their bits: int32 for fp32,
/// int16 for bf16. Positive floats are ordered as their bits are and negative ones are negative
/// integers, so ReLU and maximum are integer maxima; NaNs of both signs count as the largest.
template <class Bits>
struct PoolRows {
  /// Reads 2 * width * channels of the input rows `top` and `bottom`; writes width * channels
  /// values and `choice`s: which of the four was taken (0, 1 above; 2, 3 below; the first of equal
  /// ones), or 4 for none (all <= 0).
  void (*pool)(const Bits* top, const Bits* bottom, Bits* out, std::uint8_t* choice,
               std::int64_t width, std::int64_t channels);
  /// Backward: writes 2 * width * channels of `top` and of `bottom`, the gradient where `choice`
  /// says, 0 elsewhere.
  void (*spread)(const Bits* gradient, const std::uint8_t* choice, Bits* top, Bits* bottom,
                 std::int64_t width, std::int64_t channels);
};

/// For any processor.
template <class Bits>
const PoolRows<Bits>& portable_pool_rows();
template <>
const PoolRows<std::int32_t>& portable_pool_rows();
template <>
const PoolRows<std::int16_t>& portable_pool_rows();

/// For processors with AVX-512 (F, BW, VL); null on others.
template <class Bits>
const PoolRows<Bits>* avx512_pool_rows();
template <>
const PoolRows<std::int32_t>* avx512_pool_rows();
template <>
const PoolRows<std::int16_t>* avx512_pool_rows();

/// Size of what is pooled: one image [height,width,channels].
struct PooledImage {
  std::int64_t height, width, channels;

  std::int64_t in_row() const { return width * channels; }
  std::int64_t in_size() const { return height * in_row(); }
  std::int64_t out_row() const { return width / 2 * channels; }
  std::int64_t out_size() const { return height / 2 * out_row(); }
  bool all_is_pooled() const { return height % 2 == 0 && width % 2 == 0; }
};

/// What this processor runs fastest.
template <class Bits>
const PoolRows<Bits>& pool_rows() {
  static const PoolRows<Bits>* fastest = avx512_pool_rows<Bits>();
  return fastest != nullptr ? *fastest : portable_pool_rows<Bits>();
}

/// `PoolRows::pool` for a whole image.
template <class Bits>
void pool_image(const PooledImage& image, const Bits* in, Bits* out, std::uint8_t* choice) {
  for (std::int64_t y = 0; y < image.height / 2; ++y) {
    const Bits* const top = in + 2 * y * image.in_row();
    pool_rows<Bits>().pool(top, top + image.in_row(), out + y * image.out_row(),
                           choice + y * image.out_row(), image.width / 2, image.channels);
  }
}

/// `PoolRows::spread` for a whole image. An odd last row or column of `into` stays as it is.
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
