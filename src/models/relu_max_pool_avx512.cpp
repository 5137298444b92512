// Compiled with AVX-512: must not use the standard library, whose inline functions could then end
// up in code for all processors.
#include "base/cpu.h"
#include "models/relu_max_pool_rows.h"

#ifdef __AVX512BW__
#include <immintrin.h>
#endif

namespace mnist_train::models {

#ifdef __AVX512BW__

namespace {

/// The operations on a vector of values. All memory is accessed under a mask, so any number of
/// channels will do.
template <class Bits>
struct PoolLanes;

template <>
struct PoolLanes<std::int16_t> {
  using Mask = __mmask32;
  static constexpr std::int64_t kCount = 32;

  static __m512i load(Mask mask, const std::int16_t* from) {
    return _mm512_maskz_loadu_epi16(mask, from);
  }
  static void store(std::int16_t* to, Mask mask, __m512i v) {
    _mm512_mask_storeu_epi16(to, mask, v);
  }
  static __m512i load_bytes(Mask mask, const std::uint8_t* from) {
    return _mm512_cvtepu8_epi16(_mm256_maskz_loadu_epi8(mask, from));
  }
  static void store_bytes(std::uint8_t* to, Mask mask, __m512i v) {
    _mm512_mask_cvtepi16_storeu_epi8(to, mask, v);
  }
  static __m512i all(int value) { return _mm512_set1_epi16(static_cast<std::int16_t>(value)); }
  static Mask greater(__m512i a, __m512i b) { return _mm512_cmpgt_epi16_mask(a, b); }
  static Mask equal(__m512i a, __m512i b) { return _mm512_cmpeq_epi16_mask(a, b); }
  static __m512i larger(__m512i a, __m512i b) { return _mm512_max_epi16(a, b); }
  static __m512i choose(Mask mask, __m512i no, __m512i yes) {
    return _mm512_mask_blend_epi16(mask, no, yes);
  }
  static __m512i largest() { return all(0x7fff); }
  static __m512i infinity() { return all(0x7f80); }
};

template <>
struct PoolLanes<std::int32_t> {
  using Mask = __mmask16;
  static constexpr std::int64_t kCount = 16;

  static __m512i load(Mask mask, const std::int32_t* from) {
    return _mm512_maskz_loadu_epi32(mask, from);
  }
  static void store(std::int32_t* to, Mask mask, __m512i v) {
    _mm512_mask_storeu_epi32(to, mask, v);
  }
  static __m512i load_bytes(Mask mask, const std::uint8_t* from) {
    return _mm512_cvtepu8_epi32(_mm_maskz_loadu_epi8(mask, from));
  }
  static void store_bytes(std::uint8_t* to, Mask mask, __m512i v) {
    _mm512_mask_cvtepi32_storeu_epi8(to, mask, v);
  }
  static __m512i all(int value) { return _mm512_set1_epi32(value); }
  static Mask greater(__m512i a, __m512i b) { return _mm512_cmpgt_epi32_mask(a, b); }
  static Mask equal(__m512i a, __m512i b) { return _mm512_cmpeq_epi32_mask(a, b); }
  static __m512i larger(__m512i a, __m512i b) { return _mm512_max_epi32(a, b); }
  static __m512i choose(Mask mask, __m512i no, __m512i yes) {
    return _mm512_mask_blend_epi32(mask, no, yes);
  }
  static __m512i largest() { return all(0x7fffffff); }
  static __m512i infinity() { return all(0x7f800000); }
};

template <class Lanes>
typename Lanes::Mask lanes_left(std::int64_t count) {
  const std::int64_t lanes = count < Lanes::kCount ? count : Lanes::kCount;
  return static_cast<typename Lanes::Mask>((std::uint64_t{1} << lanes) - 1);
}

template <class Lanes>
struct Maximum {
  __m512i value = _mm512_setzero_si512();
  __m512i which = Lanes::all(4);

  void take_larger(__m512i bits, int place) {
    const __m512i magnitude = _mm512_and_si512(bits, Lanes::largest());
    const auto nan = Lanes::greater(magnitude, Lanes::infinity());
    const __m512i ordered = Lanes::choose(nan, bits, Lanes::largest());
    which = Lanes::choose(Lanes::greater(ordered, value), which, Lanes::all(place));
    value = Lanes::larger(ordered, value);
  }
};

template <class Bits, class Lanes = PoolLanes<Bits>>
void pool_row(const Bits* top, const Bits* bottom, Bits* out, std::uint8_t* choice,
              std::int64_t width, std::int64_t channels) {
  for (std::int64_t x = 0; x < width; ++x) {
    for (std::int64_t c = 0; c < channels; c += Lanes::kCount) {
      const auto mask = lanes_left<Lanes>(channels - c);
      const std::int64_t left = 2 * x * channels + c;
      Maximum<Lanes> best;
      best.take_larger(Lanes::load(mask, top + left), 0);
      best.take_larger(Lanes::load(mask, top + left + channels), 1);
      best.take_larger(Lanes::load(mask, bottom + left), 2);
      best.take_larger(Lanes::load(mask, bottom + left + channels), 3);
      Lanes::store(out + x * channels + c, mask, best.value);
      Lanes::store_bytes(choice + x * channels + c, mask, best.which);
    }
  }
}

template <class Bits, class Lanes = PoolLanes<Bits>>
void spread_row(const Bits* gradient, const std::uint8_t* choice, Bits* top, Bits* bottom,
                std::int64_t width, std::int64_t channels) {
  for (std::int64_t x = 0; x < width; ++x) {
    for (std::int64_t c = 0; c < channels; c += Lanes::kCount) {
      const auto mask = lanes_left<Lanes>(channels - c);
      const std::int64_t left = 2 * x * channels + c;
      const __m512i value = Lanes::load(mask, gradient + x * channels + c);
      const __m512i which = Lanes::load_bytes(mask, choice + x * channels + c);
      const __m512i zero = _mm512_setzero_si512();
      const auto write = [&](Bits* to, int place) {
        Lanes::store(to, mask, Lanes::choose(Lanes::equal(which, Lanes::all(place)), zero, value));
      };
      write(top + left, 0);
      write(top + left + channels, 1);
      write(bottom + left, 2);
      write(bottom + left + channels, 3);
    }
  }
}

template <class Bits>
constexpr PoolRows<Bits> kRows{&pool_row<Bits>, &spread_row<Bits>};

}  // namespace

template <class Bits>
const PoolRows<Bits>* avx512_pool_rows() {
  return cpu_features().avx512 ? &kRows<Bits> : nullptr;
}

#else

template <class Bits>
const PoolRows<Bits>* avx512_pool_rows() {
  return nullptr;
}

#endif

template const PoolRows<std::int32_t>* avx512_pool_rows();
template const PoolRows<std::int16_t>* avx512_pool_rows();

}  // namespace mnist_train::models
