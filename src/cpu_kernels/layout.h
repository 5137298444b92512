#pragma once

#include <cstdint>

/// The layout of activations: blocks of 32 images as [block][y][x][word][image][channel of a word].
/// A word is 4 bytes: one fp32 channel or two bf16 channels. Both types thus have the same strides.
/// A word of 32 images is two AVX-512 vectors; 16 such words are two AMX tiles.
namespace mnist_train::cpu_kernels {

using Bf16Bits = std::uint16_t;  // the bits of a bf16

inline constexpr std::int64_t kImages = 32;   // per block
inline constexpr std::int64_t kMinParts = 8;  // into which threads divide a batch

/// Channels per word.
template <class Element>
inline constexpr std::int64_t kDepth = 4 / sizeof(Element);
/// Elements in one word for all images of a block.
template <class Element>
inline constexpr std::int64_t kWordSize = kImages* kDepth<Element>;

constexpr std::int64_t ceil_divide(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }
constexpr std::int64_t round_up(std::int64_t a, std::int64_t b) { return ceil_divide(a, b) * b; }

template <class Element>
constexpr std::int64_t words(std::int64_t channels) {
  return ceil_divide(channels, kDepth<Element>);
}

/// Bytes after the last block of activations that kernels may read and ignore. They must contain
/// finite numbers.
inline constexpr std::int64_t kSlackBytes = std::int64_t{16} * 128;

/// Shape of a layer's images.
struct ValueShape {
  std::int64_t channels, height, width;

  bool operator==(const ValueShape&) const = default;
  std::int64_t pixels() const { return height * width; }
  /// Elements of one pixel for a block of images. `block_size`: of all pixels.
  template <class Element>
  std::int64_t pixel_size() const {
    return words<Element>(channels) * kWordSize<Element>;
  }
  template <class Element>
  std::int64_t block_size() const {
    return pixels() * pixel_size<Element>();
  }
};

}  // namespace mnist_train::cpu_kernels
