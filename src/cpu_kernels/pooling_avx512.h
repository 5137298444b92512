#pragma once

// Only for sources compiled with AVX-512, like lanes_avx512.h.

#include "cpu_kernels/lanes_avx512.h"
#include "cpu_kernels/layer_kernels.h"

namespace mnist_train::cpu_kernels::avx512 {

/// Calls `action(pixel, y, x, offset in the pixel)` for each vector of words of some rows.
template <class Element, class Action>
[[gnu::always_inline]] inline void for_each_place(const ValueShape& shape, std::int64_t begin,
                                                  std::int64_t end, const Action& action) {
  const std::int64_t pixel_size = words<Element>(shape.channels) * kWordSize<Element>;
  for (std::int64_t y = begin; y < end; ++y) {
    for (std::int64_t x = 0; x < shape.width; ++x) {
      for (std::int64_t at = 0; at < pixel_size; at += kWordSize<Element> / kVectors) {
        action((y * shape.width + x) * pixel_size, y, x, at);
      }
    }
  }
}

/// An element of a window: offset of its pixel, and its position in the window.
struct WindowTap {
  std::int64_t offset;
  int tap;
};
inline constexpr int kMostTaps = 255;

/// Calls `action(offset, offset in the pixel, taps, their number)` for each vector of words of some
/// rows. `find(y, x, taps)` finds the taps of a pixel.
template <class Element, class Find, class Action>
[[gnu::always_inline]] inline void for_each_window(const ValueShape& shape, std::int64_t begin,
                                                   std::int64_t end, const Find& find,
                                                   const Action& action) {
  const std::int64_t pixel_size = words<Element>(shape.channels) * kWordSize<Element>;
  WindowTap taps[kMostTaps];
  for (std::int64_t y = begin; y < end; ++y) {
    for (std::int64_t x = 0; x < shape.width; ++x) {
      const int count = find(y, x, taps);
      for (std::int64_t at = 0; at < pixel_size; at += kWordSize<Element> / kVectors) {
        action((y * shape.width + x) * pixel_size + at, at, taps, count);
      }
    }
  }
}

template <class Element>
void max_pool(const PoolingView& view, const Element* x, bool relu, std::int64_t begin,
              std::int64_t end, Element* y, std::uint8_t* taps) {
  const std::int64_t pixel_size = words<Element>(view.in.channels) * kWordSize<Element>;
  const __m512 lowest = relu ? _mm512_setzero_ps() : _mm512_set1_ps(-__builtin_inff());
  const auto find = [&](std::int64_t out_y, std::int64_t out_x, WindowTap* to) {
    int count = 0;
    std::int64_t row_tap = 0;
    const Window& rows = view.rows[out_y];
    const Window& columns = view.columns[out_x];
    for (std::int64_t in_y = rows.begin; in_y < rows.end; in_y += view.row_step) {
      std::int64_t tap = row_tap;
      for (std::int64_t in_x = columns.begin; in_x < columns.end; in_x += view.column_step) {
        to[count++] = {(in_y * view.in.width + in_x) * pixel_size, static_cast<int>(tap++)};
      }
      row_tap += view.kernel_width;
    }
    return count;
  };
  const auto choose = [&](std::int64_t out, std::int64_t at, const WindowTap* window, int count)
      __attribute__((always_inline)) {
    Values<Element> most;
    __m512i best[kDepth<Element>];
    for (int d = 0; d < kDepth<Element>; ++d) {
      most.of[d] = lowest;
      best[d] = _mm512_set1_epi32(relu ? 255 : 0);
    }
    for (int i = 0; i < count; ++i) {
      const Values<Element> values = load_words(x + window[i].offset + at);
      for (int d = 0; d < kDepth<Element>; ++d) {
        // A NaN is a maximum, too.
        const __mmask16 above = _mm512_cmp_ps_mask(values.of[d], most.of[d], _CMP_NLE_UQ) &
                                _mm512_cmp_ps_mask(most.of[d], most.of[d], _CMP_ORD_Q);
        most.of[d] = _mm512_mask_mov_ps(most.of[d], above, values.of[d]);
        best[d] = _mm512_mask_set1_epi32(best[d], above, window[i].tap);
      }
    }
    store_words(y + out, most);
    for (int d = 0; d < kDepth<Element>; ++d) {
      _mm512_mask_cvtepi32_storeu_epi8(taps + out + d * kLanes, 0xffff, best[d]);
    }
  };
  for_each_window<Element>(view.out, begin, end, find, choose);
}

template <class Element>
void max_pool_gradient(const PoolingView& view, const Element* dy, const std::uint8_t* taps,
                       std::int64_t begin, std::int64_t end, Element* dx) {
  const std::int64_t pixel_size = words<Element>(view.in.channels) * kWordSize<Element>;
  const auto find = [&](std::int64_t in_y, std::int64_t in_x, WindowTap* to) {
    int count = 0;
    const Cover& rows = view.row_covers[in_y];
    const Cover& columns = view.column_covers[in_x];
    for (std::int64_t y = rows.first; y < rows.last; ++y) {
      const std::int64_t down = in_y - view.rows[y].begin;
      if (down % view.row_step != 0) continue;
      for (std::int64_t x = columns.first; x < columns.last; ++x) {
        const std::int64_t right = in_x - view.columns[x].begin;
        if (right % view.column_step != 0) continue;
        const std::int64_t tap =
            down / view.row_step * view.kernel_width + right / view.column_step;
        to[count++] = {(y * view.out.width + x) * pixel_size, static_cast<int>(tap)};
      }
    }
    return count;
  };
  const auto sum = [&](std::int64_t in, std::int64_t at, const WindowTap* windows, int count)
      __attribute__((always_inline)) {
    Values<Element> sums;
    for (__m512& of_channel : sums.of) of_channel = _mm512_setzero_ps();
    for (int i = 0; i < count; ++i) {
      const std::int64_t from = windows[i].offset + at;
      const Values<Element> g = load_words(dy + from);
      for (int d = 0; d < kDepth<Element>; ++d) {
        const __m128i chosen =
            _mm_loadu_si128(reinterpret_cast<const __m128i*>(taps + from + d * kLanes));
        const __mmask16 mask =
            _mm_cmpeq_epi8_mask(chosen, _mm_set1_epi8(static_cast<char>(windows[i].tap)));
        sums.of[d] = _mm512_mask_add_ps(sums.of[d], mask, sums.of[d], g.of[d]);
      }
    }
    store_words(dx + in, sums);
  };
  for_each_window<Element>(view.in, begin, end, find, sum);
}

template <class Element>
void average_pool(const PoolingView& view, const Element* x, std::int64_t begin, std::int64_t end,
                  Element* y) {
  const std::int64_t pixel_size = words<Element>(view.in.channels) * kWordSize<Element>;
  for_each_place<Element>(
      view.out, begin, end,
      [&](std::int64_t pixel, std::int64_t out_y, std::int64_t out_x, std::int64_t at)
          __attribute__((always_inline)) {
            const Window& rows = view.rows[out_y];
            const Window& columns = view.columns[out_x];
            Values<Element> sums;
            for (__m512& sum : sums.of) sum = _mm512_setzero_ps();
            for (std::int64_t in_y = rows.begin; in_y < rows.end; ++in_y) {
              for (std::int64_t in_x = columns.begin; in_x < columns.end; ++in_x) {
                const Values<Element> values =
                    load_words(x + (in_y * view.in.width + in_x) * pixel_size + at);
                for (int d = 0; d < kDepth<Element>; ++d) {
                  sums.of[d] = _mm512_add_ps(sums.of[d], values.of[d]);
                }
              }
            }
            const __m512 scale = _mm512_set1_ps(rows.scale * columns.scale);
            for (__m512& sum : sums.of) sum = _mm512_mul_ps(sum, scale);
            store_words(y + pixel + at, sums);
          });
}

template <class Element>
void average_pool_gradient(const PoolingView& view, const Element* dy, std::int64_t begin,
                           std::int64_t end, Element* dx) {
  const std::int64_t pixel_size = words<Element>(view.in.channels) * kWordSize<Element>;
  for_each_place<Element>(
      view.in, begin, end,
      [&](std::int64_t pixel, std::int64_t in_y, std::int64_t in_x,
          std::int64_t at) __attribute__((always_inline)) {
        Values<Element> sums;
        for (__m512& sum : sums.of) sum = _mm512_setzero_ps();
        const Cover& rows = view.row_covers[in_y];
        const Cover& columns = view.column_covers[in_x];
        for (std::int64_t y = rows.first; y < rows.last; ++y) {
          for (std::int64_t x = columns.first; x < columns.last; ++x) {
            const __m512 scale = _mm512_set1_ps(view.rows[y].scale * view.columns[x].scale);
            const Values<Element> g = load_words(dy + (y * view.out.width + x) * pixel_size + at);
            for (int d = 0; d < kDepth<Element>; ++d) {
              sums.of[d] = _mm512_fmadd_ps(g.of[d], scale, sums.of[d]);
            }
          }
        }
        store_words(dx + pixel + at, sums);
      });
}

}  // namespace mnist_train::cpu_kernels::avx512
