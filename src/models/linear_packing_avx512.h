#pragma once

// Only for sources that are compiled with AVX-512 switched on, like lanes_avx512.h.

#include "models/linear_kernels.h"
#include "models/pairs_avx512.h"
#include "models/tile_cover_avx512.h"

/// How the factors of the products of a linear layer are rearranged, of bf16 and of f32.
namespace mnist_train::models::avx512 {

/// The tiles that cover a product.
template <class Element>
struct Elements;

template <>
struct Elements<Bf16Bits> {
  using Tiles = TileCover;
};

template <>
struct Elements<float> {
  struct Tiles {
    explicit Tiles(std::int64_t /*inner*/) {}

    static constexpr std::int64_t most_rows() { return kTileRows; }
    template <class Work>
    void cover(std::int64_t rows, std::int64_t count, const Work& work) const {
      for_each_tile(rows, count, work);
    }
  };
};

/// Returns how many elements a row of as many columns takes, in whole vectors of pairs or of f32.
template <class Element>
std::int64_t row_of(std::int64_t columns) {
  return vectors(columns) * kLanes * kDepth<Element>;
}

/// Writes rows of a matrix, `step` elements apart, as [rows][columns, in whole vectors].
inline void pack_rows(std::int64_t rows, std::int64_t columns, std::int64_t step, const float* from,
                      float* to) {
  for (std::int64_t row = 0; row < rows; ++row, from += step) {
    prefetch_elements(from + kRowsAhead * step, columns);
    for (std::int64_t i = 0; i < columns; i += kLanes, to += kLanes) {
      _mm512_storeu_ps(to, _mm512_maskz_loadu_ps(lanes(columns - i), from + i));
    }
  }
}

/// Writes them as [pairs of rows][columns, in whole vectors][2].
inline void pack_rows(std::int64_t rows, std::int64_t columns, std::int64_t step,
                      const Bf16Bits* from, Bf16Bits* to) {
  GroupPairs{1, rows, 0, step, columns}.zip_all(from, to);
}

/// Writes columns of x as [in][samples, in whole vectors], those of bf16 as [pairs of columns]
/// [samples, in whole vectors][2]. Lanes without a sample stay as they are: nobody reads their
/// sums.
template <class Element>
void pack_input(const LinearShape& s, const Element* x, std::int64_t begin, std::int64_t end,
                Element* packed) {
  const std::int64_t step = row_of<Element>(s.batch);
  const std::int64_t whole = (end - begin) / kDepth<Element>;
  Element* const to = packed + begin / kDepth<Element> * step;
  transpose(x + begin, s.in, s.batch, whole, to, step);
  if (begin + whole * kDepth<Element> == end) return;
  Element* const last = to + whole * step;
  for (std::int64_t sample = 0; sample < s.batch; ++sample) {
    last[2 * sample] = x[sample * s.in + end - 1];
    last[2 * sample + 1] = 0;
  }
}

/// Returns how far the rows of a packed gradient, those of an output, are apart.
template <class Element>
std::int64_t packed_samples(const LinearShape& s) {
  return depths_of<Element>(s.batch) * kDepth<Element>;
}

/// Writes the gradient as [out][samples], so that what is multiplied one after the other lies so.
inline void pack_gradient(const LinearShape& s, const float* gradient, std::int64_t begin,
                          std::int64_t end, float* packed) {
  transpose(gradient + begin, s.out, s.batch, end - begin, packed + begin * s.batch, s.batch);
}

/// The pairs of samples, before they are transposed, lie in the buffer behind the packed gradient.
inline void pack_gradient(const LinearShape& s, const Bf16Bits* gradient, std::int64_t begin,
                          std::int64_t end, Bf16Bits* packed) {
  const std::int64_t samples = packed_samples<Bf16Bits>(s);
  Bf16Bits* const zipped = packed + (s.out + begin) * samples;
  pack_rows(s.batch, end - begin, s.out, gradient + begin, zipped);
  transpose(zipped, row_of<Bf16Bits>(end - begin), samples / 2, end - begin,
            packed + begin * samples, samples);
}

/// Returns how many elements the packed columns of x take that are packed together.
template <class Element>
std::int64_t packed_panel(const LinearShape& s) {
  return depths_of<Element>(s.batch) * row_of<Element>(LinearKernels<Element>::kColumns);
}

template <class Element>
void pack_columns(const LinearShape& s, const Element* x, std::int64_t begin, std::int64_t end,
                  Element* packed) {
  pack_rows(s.batch, end - begin, s.in, x + begin,
            packed + begin / LinearKernels<Element>::kColumns * packed_panel<Element>(s));
}

}  // namespace mnist_train::models::avx512
