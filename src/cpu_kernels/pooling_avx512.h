#pragma once

// Only for sources compiled with AVX-512, like lanes_avx512.h.

#include "cpu_kernels/lanes_avx512.h"
#include "cpu_kernels/layer_kernels.h"

namespace mnist_train::cpu_kernels::avx512 {

template <class Element>
std::int64_t pixel_size(const ValueShape& shape) {
  return words<Element>(shape.channels) * kWordSize<Element>;
}

/// Calls `action(offset, offset in the pixel, window)` for each vector of words of some rows, with
/// the result of `find(y, x)` for the pixel.
template <class Element, class Find, class Action>
[[gnu::always_inline]] inline void for_each_window(const ValueShape& shape, std::int64_t begin,
                                                   std::int64_t end, const Find& find,
                                                   const Action& action) {
  const std::int64_t size = pixel_size<Element>(shape);
  for (std::int64_t y = begin; y < end; ++y) {
    for (std::int64_t x = 0; x < shape.width; ++x) {
      const auto window = find(y, x);
      for (std::int64_t at = 0; at < size; at += kVectorSize<Element>) {
        action((y * shape.width + x) * size + at, at, window);
      }
    }
  }
}

/// Elements of windows: offsets of their pixels, and their positions in the windows.
struct WindowTaps {
  struct Position {
    std::int64_t offset;
    int tap;
  };

  int count = 0;
  Position of[255];
};

template <class Element>
void max_pool(const PoolingView& view, const Element* x, bool relu, std::int64_t begin,
              std::int64_t end, Element* y, std::uint8_t* taps) {
  const std::int64_t size = pixel_size<Element>(view.in);
  const __m512 lowest = relu ? _mm512_setzero_ps() : _mm512_set1_ps(-__builtin_inff());
  const auto find = [&](std::int64_t out_y, std::int64_t out_x) {
    WindowTaps window;
    std::int64_t row_tap = 0;
    const Window& rows = view.rows[out_y];
    const Window& columns = view.columns[out_x];
    for (std::int64_t in_y = rows.begin; in_y < rows.end; in_y += view.row_step) {
      std::int64_t tap = row_tap;
      for (std::int64_t in_x = columns.begin; in_x < columns.end; in_x += view.column_step) {
        window.of[window.count++] = {(in_y * view.in.width + in_x) * size, static_cast<int>(tap++)};
      }
      row_tap += view.kernel_width;
    }
    return window;
  };
  const auto choose = [&](std::int64_t out, std::int64_t at, const WindowTaps& window)
      __attribute__((always_inline)) {
    Values<Element> most;
    __m512i best[kDepth<Element>];
    for (int d = 0; d < kDepth<Element>; ++d) {
      most.of[d] = lowest;
      best[d] = _mm512_set1_epi32(relu ? 255 : 0);
    }
    for (int i = 0; i < window.count; ++i) {
      const Values<Element> values = load_words(x + window.of[i].offset + at);
      for (int d = 0; d < kDepth<Element>; ++d) {
        // A NaN is a maximum, too.
        const __mmask16 above = _mm512_cmp_ps_mask(values.of[d], most.of[d], _CMP_NLE_UQ) &
                                _mm512_cmp_ps_mask(most.of[d], most.of[d], _CMP_ORD_Q);
        most.of[d] = _mm512_mask_mov_ps(most.of[d], above, values.of[d]);
        best[d] = _mm512_mask_set1_epi32(best[d], above, window.of[i].tap);
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
  const std::int64_t size = pixel_size<Element>(view.in);
  const auto find = [&](std::int64_t in_y, std::int64_t in_x) {
    WindowTaps windows;
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
        windows.of[windows.count++] = {(y * view.out.width + x) * size, static_cast<int>(tap)};
      }
    }
    return windows;
  };
  const auto sum = [&](std::int64_t in, std::int64_t at, const WindowTaps& windows)
      __attribute__((always_inline)) {
    Values<Element> sums = {};
    for (int i = 0; i < windows.count; ++i) {
      const std::int64_t from = windows.of[i].offset + at;
      const Values<Element> g = load_words(dy + from);
      for (int d = 0; d < kDepth<Element>; ++d) {
        const __m128i chosen =
            _mm_loadu_si128(reinterpret_cast<const __m128i*>(taps + from + d * kLanes));
        const __mmask16 mask =
            _mm_cmpeq_epi8_mask(chosen, _mm_set1_epi8(static_cast<char>(windows.of[i].tap)));
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
  struct Pixels {
    Window rows, columns;
  };
  const std::int64_t size = pixel_size<Element>(view.in);
  const auto find = [&](std::int64_t out_y, std::int64_t out_x) {
    return Pixels{view.rows[out_y], view.columns[out_x]};
  };
  const auto sum = [&](std::int64_t out, std::int64_t at, const Pixels& of)
      __attribute__((always_inline)) {
    Values<Element> sums = {};
    for (std::int64_t in_y = of.rows.begin; in_y < of.rows.end; ++in_y) {
      for (std::int64_t in_x = of.columns.begin; in_x < of.columns.end; ++in_x) {
        sums = sums + load_words(x + (in_y * view.in.width + in_x) * size + at);
      }
    }
    for (__m512& value : sums.of) value = value * (of.rows.scale * of.columns.scale);
    store_words(y + out, sums);
  };
  for_each_window<Element>(view.out, begin, end, find, sum);
}

template <class Element>
void average_pool_gradient(const PoolingView& view, const Element* dy, std::int64_t begin,
                           std::int64_t end, Element* dx) {
  struct PixelCovers {
    Cover rows, columns;
  };
  const std::int64_t size = pixel_size<Element>(view.in);
  const auto find = [&](std::int64_t in_y, std::int64_t in_x) {
    return PixelCovers{view.row_covers[in_y], view.column_covers[in_x]};
  };
  const auto sum = [&](std::int64_t in, std::int64_t at, const PixelCovers& of)
      __attribute__((always_inline)) {
    Values<Element> sums = {};
    for (std::int64_t y = of.rows.first; y < of.rows.last; ++y) {
      for (std::int64_t x = of.columns.first; x < of.columns.last; ++x) {
        const __m512 scale = _mm512_set1_ps(view.rows[y].scale * view.columns[x].scale);
        const Values<Element> g = load_words(dy + (y * view.out.width + x) * size + at);
        for (int d = 0; d < kDepth<Element>; ++d) {
          sums.of[d] = _mm512_fmadd_ps(g.of[d], scale, sums.of[d]);
        }
      }
    }
    store_words(dx + in, sums);
  };
  for_each_window<Element>(view.in, begin, end, find, sum);
}

}  // namespace mnist_train::cpu_kernels::avx512
