// Compiled with AVX-512 switched on: nothing of the standard library may be used here, or its
// inline functions could end up in the program for all processors.
#include "models/hwcn_convolution.h"

#ifdef __AVX512BF16__

#include "models/hwcn_blocks_avx512.h"

namespace mnist_train::models::avx512 {

namespace {

/// Takes the elements of images in the order in which they lie there, which is not that of a block
/// where an image is [channels,pixels].
class ElementOrder {
 public:
  ElementOrder(const ImageBlock& block, std::int64_t element)
      : size_(block.size), planes_(block.planes) {
    const std::int64_t pixels = size_ / planes_;
    row_ = element % pixels * planes_ + element / pixels;
  }

  /// Returns where the next element's images begin in a block.
  std::int64_t next() {
    const std::int64_t place = row_ * kImages;
    row_ += planes_;
    if (row_ >= size_) row_ -= size_ - 1;
    return place;
  }

 private:
  std::int64_t size_, planes_, row_;
};

/// Up to 64 bytes of each of 32 images, as 32-bit words: of an image each, or, once transposed, of
/// 16 images each.
using ImageWords = __m512i[2][kLanes];

/// Returns a mask of the bytes that the first `count` elements of a vector take.
template <class Element>
__mmask64 bytes_of(std::int64_t count) {
  const std::int64_t left = 64 - count * static_cast<std::int64_t>(sizeof(Element));
  return left == 64 ? 0 : ~std::uint64_t{0} >> left;
}

/// Returns a vector of 32 elements, of which element i is `number(i)`.
template <class Number>
__m512i order(const Number& number) {
  alignas(64) Bf16Bits numbers[kPairs];
  for (int i = 0; i < kPairs; ++i) numbers[i] = static_cast<Bf16Bits>(number(i));
  return _mm512_load_si512(numbers);
}

// These store transposed words as elements of a block, or load them.

void store_block(const ImageWords& words, std::int64_t count, ElementOrder place, Bf16Bits* to) {
  const __m512i even = order([](int i) { return 2 * i; });
  const __m512i odd = order([](int i) { return 2 * i + 1; });
  for (std::int64_t i = 0; i < count; ++i) {
    _mm512_storeu_si512(
        to + place.next(),
        _mm512_permutex2var_epi16(words[0][i / 2], i % 2 == 0 ? even : odd, words[1][i / 2]));
  }
}
void store_block(const ImageWords& words, std::int64_t count, ElementOrder place, float* to) {
  for (std::int64_t i = 0; i < count; ++i) {
    float* const element = to + place.next();
    _mm512_storeu_si512(element, words[0][i]);
    _mm512_storeu_si512(element + kLanes, words[1][i]);
  }
}

void load_block(const Bf16Bits* from, std::int64_t count, ElementOrder place, ImageWords& words) {
  const __m512i first = order([](int i) { return i / 2 + i % 2 * kPairs; });
  const __m512i second = order([](int i) { return i / 2 + kLanes + i % 2 * kPairs; });
  for (std::int64_t i = 0; i < kPairs; i += 2) {
    const __m512i zero = _mm512_setzero_si512();
    const __m512i a = i < count ? images_at(from + place.next()) : zero;
    const __m512i b = i + 1 < count ? images_at(from + place.next()) : zero;
    words[0][i / 2] = _mm512_permutex2var_epi16(a, first, b);
    words[1][i / 2] = _mm512_permutex2var_epi16(a, second, b);
  }
}
void load_block(const float* from, std::int64_t count, ElementOrder place, ImageWords& words) {
  for (std::int64_t i = 0; i < kLanes; ++i) {
    const float* const element = i < count ? from + place.next() : nullptr;
    for (std::int64_t half = 0; half < 2; ++half) {
      words[half][i] =
          element == nullptr ? _mm512_setzero_si512() : _mm512_loadu_si512(element + half * kLanes);
    }
  }
}

}  // namespace

template <class Element>
void to_hwcn(const ImageBlock& block, const Element* images, std::int64_t begin, std::int64_t end,
             Element* to) {
  constexpr std::int64_t kPart = kVectorElements<Element>;
  images += block.first * block.size;
  for (; begin < end; begin += kPart) {
    const std::int64_t elements = end - begin < kPart ? end - begin : kPart;
    ImageWords words;
    for (std::int64_t i = 0; i < kImages; ++i) {
      words[i / kLanes][i % kLanes] = _mm512_maskz_loadu_epi8(
          bytes_of<Element>(i < block.count ? elements : 0), images + i * block.size + begin);
    }
    transpose(words[0]);
    transpose(words[1]);
    store_block(words, elements, ElementOrder(block, begin), to);
  }
}

template <class Element>
void from_hwcn(const ImageBlock& block, const Element* from, std::int64_t begin, std::int64_t end,
               Element* images) {
  constexpr std::int64_t kPart = kVectorElements<Element>;
  images += block.first * block.size;
  for (; begin < end; begin += kPart) {
    const std::int64_t elements = end - begin < kPart ? end - begin : kPart;
    ImageWords words;
    load_block(from, elements, ElementOrder(block, begin), words);
    transpose(words[0]);
    transpose(words[1]);
    for (std::int64_t i = 0; i < block.count; ++i) {
      _mm512_mask_storeu_epi8(images + i * block.size + begin, bytes_of<Element>(elements),
                              words[i / kLanes][i % kLanes]);
    }
  }
}

template void to_hwcn(const ImageBlock&, const Bf16Bits*, std::int64_t, std::int64_t, Bf16Bits*);
template void to_hwcn(const ImageBlock&, const float*, std::int64_t, std::int64_t, float*);
template void from_hwcn(const ImageBlock&, const Bf16Bits*, std::int64_t, std::int64_t, Bf16Bits*);
template void from_hwcn(const ImageBlock&, const float*, std::int64_t, std::int64_t, float*);

}  // namespace mnist_train::models::avx512

#endif
