// Compiled with AVX-512: must not use the standard library, whose inline functions could then end
// up in code for all processors.
#include "base/cpu.h"
#include "models/linear_kernels.h"

#ifdef __AVX512BF16__

#include "models/tiles_avx512.h"

namespace mnist_train::models {

namespace {

using namespace avx512;

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

constexpr std::int64_t kBlock = LinearKernels<float>::kOutputs;  // outputs put in order at a time
constexpr std::int64_t kBatch = 4 * kLanes;  // samples that go through a block together

/// A block of outputs of some samples. Tiles have outputs as rows and samples as lanes, because so
/// the weights, which are larger than x, are read as they lie.
template <class Element>
struct ForwardBlock {
  const LinearShape& s;
  const Element* packed;   // of the first sample
  const Element* weights;  // of the first output
  const Element* bias;
  float* block;  // [kBlock][kBatch]

  template <class Sums>
  void tile(typename Sums::Shapes shapes, std::int64_t row, std::int64_t vector) const {
    Sums tile(shapes);
    tile.for_each([&](int m, int, __m512& sum) { sum = _mm512_set1_ps(to_float(bias[row + m])); });
    const Factors<Element> factors{weights, s.in, kDepth<Element>, packed,
                                   row_of<Element>(s.batch)};
    tile.add_and_fetch(factors.from(row, vector), s.in);
    tile.store(block + row * kBatch + vector * kLanes, kBatch);
  }
};

/// Stores `count` outputs of a sample, or what is positive of them; NaNs stay.
template <class Element>
void store_outputs(const float* outputs, std::int64_t count, bool relu, Element* to) {
  for (std::int64_t i = 0; i < count; i += kLanes) {
    const __m512 y = _mm512_load_ps(outputs + i);
    const __mmask16 negative = _mm512_cmp_ps_mask(y, _mm512_setzero_ps(), _CMP_LE_OQ);
    const __m512 positive = _mm512_mask_blend_ps(negative, y, _mm512_setzero_ps());
    store_rounded(to + i, lanes(count - i), relu ? positive : y);
  }
}

template <class Element>
void forward(const LinearShape& s, const Element* packed, const Element* weights,
             const Element* bias, bool relu, std::int64_t begin, std::int64_t end, Element* y) {
  alignas(64) float block[kBlock * kBatch];
  alignas(64) float by_sample[kBatch * kBlock];
  typename Elements<Element>::Tiles tiles(s.in);
  for (std::int64_t output = begin; output < end; output += kBlock) {
    const std::int64_t outputs = end - output < kBlock ? end - output : kBlock;
    for (std::int64_t first = 0; first < s.batch; first += kBatch) {
      const std::int64_t samples = s.batch - first < kBatch ? s.batch - first : kBatch;
      tiles.cover(outputs, vectors(samples),
                  ForwardBlock<Element>{s, packed + kDepth<Element> * first,
                                        weights + output * s.in, bias + output, block});
      transpose(block, kBatch, outputs, samples, by_sample, kBlock);
      for (std::int64_t i = 0; i < samples; ++i) {
        store_outputs(by_sample + i * kBlock, outputs, relu, y + (first + i) * s.out + output);
      }
    }
  }
}

/// Columns of a matrix that are packed next. They are fetched from memory while a product is
/// computed, because where rows are far apart the processor does not do it by itself.
template <class Element>
struct NextColumns {
  const Element* begin = nullptr;
  std::int64_t rows = 0, step = 0, count = 0;

  /// Fetches the part that is due in the tile of these rows of the product, of which there are
  /// `all`. GCC leaves out calls of functions that do nothing else, unless they are inlined.
  [[gnu::always_inline]] void fetch(std::int64_t row, std::int64_t tile_rows,
                                    std::int64_t all) const {
    const std::int64_t end = rows * (row + tile_rows) / all;
    for (std::int64_t i = rows * row / all; i < end; ++i) {
      prefetch_elements<2>(begin + i * step, count);
    }
  }
};

/// Writes a * b into a matrix whose rows are `width` elements, in bf16 rounded.
template <class Element>
struct Product {
  Factors<Element> factors;
  std::int64_t rows, inner, width, columns;
  Element* to;
  NextColumns<Element> next;

  template <class Sums>
  void tile(typename Sums::Shapes shapes, std::int64_t row, std::int64_t vector) const {
    Sums tile(shapes);
    Element* const first = to + row * width + vector * kLanes;
    tile.set_to_zero();
    next.fetch(row, tile.rows(), rows);
    tile.prefetch(first + kAmxVectors * kLanes, width);
    tile.add(factors.from(row, vector), inner);
    tile.for_each([&](int m, int v, const __m512& sum) {
      const std::int64_t column = (vector + v) * kLanes;
      store_rounded(first + m * width + v * kLanes, lanes(columns - column), sum);
    });
  }
};

/// Returns how many columns of x, or of the weights, come behind these, of those packed at a time.
std::int64_t next_columns(const LinearShape& s, std::int64_t end) {
  const std::int64_t left = s.in - end;
  return left < LinearKernels<float>::kColumns ? left : LinearKernels<float>::kColumns;
}

template <class Element>
void backward_data(const LinearShape& s, const Element* gradient, const Element* weights,
                   std::int64_t begin, std::int64_t end, Element* buffer, Element* into) {
  const std::int64_t columns = end - begin;
  pack_rows(s.out, columns, s.in, weights + begin, buffer);
  typename Elements<Element>::Tiles(s.out).cover(
      s.batch, vectors(columns),
      Product<Element>{{gradient, s.out, kDepth<Element>, buffer, row_of<Element>(columns)},
                       s.batch,
                       s.out,
                       s.in,
                       columns,
                       into + begin,
                       {weights + end, s.out, s.in, next_columns(s, end)}});
}

template <class Element>
void backward_weights(const LinearShape& s, const Element* packed_gradient,
                      const Element* packed_columns, std::int64_t begin, std::int64_t end,
                      Element* weights) {
  constexpr std::int64_t kColumns = LinearKernels<Element>::kColumns;
  const std::int64_t samples = packed_samples<Element>(s);
  typename Elements<Element>::Tiles tiles(samples);
  // A few rows at a time go through all columns, since so memory is passed in its order.
  const std::int64_t most = tiles.most_rows();
  for (std::int64_t row = begin; row < end; row += most) {
    const std::int64_t rows = end - row < most ? end - row : most;
    for (std::int64_t column = 0; column < s.in; column += kColumns) {
      const std::int64_t columns = s.in - column < kColumns ? s.in - column : kColumns;
      const Element* const panel = packed_columns + column / kColumns * packed_panel<Element>(s);
      tiles.cover(rows, vectors(columns),
                  Product<Element>{{packed_gradient + row * samples, samples, kDepth<Element>,
                                    panel, row_of<Element>(columns)},
                                   rows,
                                   samples,
                                   s.in,
                                   columns,
                                   weights + row * s.in + column,
                                   {}});
    }
  }
}

template <class Element>
typename LinearKernels<Element>::LinearBufferSizes sizes(const LinearShape& s) {
  constexpr std::int64_t kColumns = LinearKernels<Element>::kColumns;
  const std::int64_t zipped =
      kDepth<Element> == 1 ? 0 : depths_of<Element>(s.batch) * row_of<Element>(s.out);
  return {depths_of<Element>(s.in) * row_of<Element>(s.batch),
          s.out * packed_samples<Element>(s) + zipped,
          (s.in + kColumns - 1) / kColumns * packed_panel<Element>(s),
          depths_of<Element>(s.out) * row_of<Element>(kColumns)};
}

template <class Element>
constexpr LinearKernels<Element> kKernels{
    &sizes<Element>, &pack_input<Element>,   &forward<Element>,         &backward_data<Element>,
    &pack_gradient,  &pack_columns<Element>, &backward_weights<Element>};

}  // namespace

const LinearKernels<Bf16Bits>* avx512_bf16_linear() {
  return cpu_features().avx512_bf16 ? &kKernels<Bf16Bits> : nullptr;
}
const LinearKernels<float>* avx512_f32_linear() {
  return cpu_features().avx512_bf16 ? &kKernels<float> : nullptr;
}

}  // namespace mnist_train::models

#else

namespace mnist_train::models {

const LinearKernels<Bf16Bits>* avx512_bf16_linear() { return nullptr; }
const LinearKernels<float>* avx512_f32_linear() { return nullptr; }

}  // namespace mnist_train::models

#endif
