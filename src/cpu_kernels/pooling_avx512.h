#pragma once

// Only for sources compiled with AVX-512, like lanes_avx512.h.

#include "cpu_kernels/lanes_avx512.h"
#include "cpu_kernels/layer_kernels.h"

namespace mnist_train::cpu_kernels::avx512 {

/// Calls `action(offset, offset in the pixel, taps, end of the taps)` for each vector of words.
template <class Element, class Action>
[[gnu::always_inline]] inline void for_each_window(const PoolingView& view, const Action& action) {
  const std::int64_t size = view.pixel_size;
  const std::int64_t pixels = view.pixels;
  const std::int64_t* const begin = view.begin;
  const WindowTap* const all = view.taps;
  for (std::int64_t pixel = 0; pixel < pixels; ++pixel) {
    const WindowTap* const taps = all + begin[pixel];
    const WindowTap* const end = all + begin[pixel + 1];
    for (std::int64_t at = 0; at < size; at += kVectorSize<Element>) {
      action(pixel * size + at, at, taps, end);
    }
  }
}

template <class Element>
void max_pool(const PoolingView& view, const Element* x, bool relu, Element* y,
              std::uint8_t* chosen) {
  const __m512 lowest = relu ? _mm512_setzero_ps() : _mm512_set1_ps(-__builtin_inff());
  const auto choose = [&](std::int64_t out, std::int64_t at, const WindowTap* tap,
                          const WindowTap* end) __attribute__((always_inline)) {
    Values<Element> most;
    __m512i best[kDepth<Element>];
    for (int d = 0; d < kDepth<Element>; ++d) {
      most.of[d] = lowest;
      best[d] = _mm512_set1_epi32(relu ? 255 : 0);
    }
    for (; tap < end; ++tap) {
      const Values<Element> values = load_words(x + tap->offset + at);
      for (int d = 0; d < kDepth<Element>; ++d) {
        // A NaN is a maximum, too.
        const __mmask16 above = _mm512_cmp_ps_mask(values.of[d], most.of[d], _CMP_NLE_UQ) &
                                _mm512_cmp_ps_mask(most.of[d], most.of[d], _CMP_ORD_Q);
        most.of[d] = _mm512_mask_mov_ps(most.of[d], above, values.of[d]);
        best[d] = _mm512_mask_set1_epi32(best[d], above, tap->position);
      }
    }
    store_words(y + out, most);
    for (int d = 0; d < kDepth<Element>; ++d) {
      _mm512_mask_cvtepi32_storeu_epi8(chosen + out + d * kLanes, 0xffff, best[d]);
    }
  };
  for_each_window<Element>(view, choose);
}

template <class Element>
void max_pool_gradient(const PoolingView& view, const Element* dy, const std::uint8_t* chosen,
                       Element* dx) {
  const auto sum = [&](std::int64_t in, std::int64_t at, const WindowTap* tap, const WindowTap* end)
      __attribute__((always_inline)) {
    Values<Element> sums = {};
    for (; tap < end; ++tap) {
      const std::int64_t from = tap->offset + at;
      const Values<Element> g = load_words(dy + from);
      for (int d = 0; d < kDepth<Element>; ++d) {
        const __m128i positions =
            _mm_loadu_si128(reinterpret_cast<const __m128i*>(chosen + from + d * kLanes));
        const __mmask16 mask =
            _mm_cmpeq_epi8_mask(positions, _mm_set1_epi8(static_cast<char>(tap->position)));
        sums.of[d] = _mm512_mask_add_ps(sums.of[d], mask, sums.of[d], g.of[d]);
      }
    }
    store_words(dx + in, sums);
  };
  for_each_window<Element>(view, sum);
}

template <class Element>
void average_pool(const PoolingView& view, const Element* x, Element* y) {
  const auto sum = [&](std::int64_t out, std::int64_t at, const WindowTap* tap,
                       const WindowTap* end) __attribute__((always_inline)) {
    const float scale = tap < end ? tap->scale : 0;
    Values<Element> sums = {};
    for (; tap < end; ++tap) sums = sums + load_words(x + tap->offset + at);
    for (__m512& value : sums.of) value = value * scale;
    store_words(y + out, sums);
  };
  for_each_window<Element>(view, sum);
}

template <class Element>
void average_pool_gradient(const PoolingView& view, const Element* dy, Element* dx) {
  const auto sum = [&](std::int64_t in, std::int64_t at, const WindowTap* tap, const WindowTap* end)
      __attribute__((always_inline)) {
    Values<Element> sums = {};
    for (; tap < end; ++tap) {
      const __m512 scale = _mm512_set1_ps(tap->scale);
      const Values<Element> g = load_words(dy + tap->offset + at);
      for (int d = 0; d < kDepth<Element>; ++d) {
        sums.of[d] = _mm512_fmadd_ps(g.of[d], scale, sums.of[d]);
      }
    }
    store_words(dx + in, sums);
  };
  for_each_window<Element>(view, sum);
}

}  // namespace mnist_train::cpu_kernels::avx512
