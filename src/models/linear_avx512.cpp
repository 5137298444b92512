// Compiled with AVX-512 switched on: nothing of the standard library may be used here, or its
// inline functions could end up in the program for all processors.
#include "models/linear_kernels.h"

#ifdef __AVX512BF16__

#include "models/pairs_avx512.h"
#include "models/tile_cover_avx512.h"

namespace mnist_train::models {

namespace {

using namespace avx512;

constexpr std::int64_t kBlock = LinearKernels::kOutputs;  // outputs that are put in order at a time
static_assert(kBlock == kPairs, "a row of a block is one vector");
constexpr std::int64_t kBatch = 4 * kLanes;  // samples that go through a block together

/// Rows of a matrix as pairs: [pairs of rows][columns, in whole vectors][2].
GroupPairs row_pairs(std::int64_t rows, std::int64_t columns, std::int64_t step) {
  return {1, rows, 0, step, columns};
}

/// Writes pairs of columns of x as [pairs][samples, in whole vectors][2]. Lanes without a sample
/// stay as they are: nobody reads their sums.
void pack_input(const LinearShape& s, const Bf16Bits* x, Bf16Bits* packed) {
  const std::int64_t step = vectors(s.batch) * kPairs;
  transpose_pairs(x, s.in, s.batch, s.in / 2, packed, step);
  if (s.in % 2 == 0) return;
  Bf16Bits* const last = packed + s.in / 2 * step;
  for (std::int64_t sample = 0; sample < s.batch; ++sample) {
    last[2 * sample] = x[sample * s.in + s.in - 1];
    last[2 * sample + 1] = 0;
  }
}

/// A block of outputs of some samples. Tiles have outputs as rows and samples as lanes, because so
/// the weights, which are larger than x, are read as they lie.
struct ForwardBlock {
  const LinearShape& s;
  const Bf16Bits* packed;   // of the first sample
  const Bf16Bits* weights;  // of the first output
  const Bf16Bits* bias;
  Bf16Bits* block;  // [kBatch][kBlock]

  template <class Sums>
  void tile(typename Sums::Shapes shapes, std::int64_t row, std::int64_t vector) const {
    Sums tile(shapes);
    tile.for_each([&](int m, int, __m512& sum) { sum = _mm512_set1_ps(to_float(bias[row + m])); });
    tile.add(
        Factors<Bf16Bits>{weights, s.in, 2, packed, vectors(s.batch) * kPairs}.from(row, vector),
        s.in);
    tile.for_each([&](int m, int v, const __m512& sum) {
      alignas(32) Bf16Bits samples[kLanes];
      store_rounded(samples, 0xffff, sum);
      Bf16Bits* const to = block + (vector + v) * kLanes * kBlock + row + m;
      for (std::int64_t i = 0; i < kLanes; ++i) to[i * kBlock] = samples[i];
    });
  }
};

/// Returns max(y, 0); NaNs stay.
__m512i relu_of(__m512i y) {
  const __m512i magnitude = _mm512_and_si512(y, _mm512_set1_epi16(0x7fff));
  const __mmask32 nan = _mm512_cmpgt_epi16_mask(magnitude, _mm512_set1_epi16(0x7f80));
  return _mm512_mask_blend_epi16(nan, _mm512_max_epi16(y, _mm512_setzero_si512()), y);
}

void forward(const LinearShape& s, const Bf16Bits* packed, const Bf16Bits* weights,
             const Bf16Bits* bias, bool relu, std::int64_t begin, std::int64_t end, Bf16Bits* y) {
  alignas(64) Bf16Bits block[kBatch * kBlock];
  TileCover tiles(s.in);
  for (std::int64_t first = 0; first < s.batch; first += kBatch) {
    const std::int64_t samples = s.batch - first < kBatch ? s.batch - first : kBatch;
    for (std::int64_t output = begin; output < end; output += kBlock) {
      const std::int64_t outputs = end - output < kBlock ? end - output : kBlock;
      const auto mask = static_cast<__mmask32>((std::uint64_t{1} << outputs) - 1);
      tiles.cover(
          outputs, vectors(samples),
          ForwardBlock{s, packed + 2 * first, weights + output * s.in, bias + output, block});
      for (std::int64_t i = 0; i < samples; ++i) {
        const __m512i values = _mm512_load_si512(block + i * kBlock);
        _mm512_mask_storeu_epi16(y + (first + i) * s.out + output, mask,
                                 relu ? relu_of(values) : values);
      }
    }
  }
}

/// Writes a * b into a matrix whose rows are `width` elements, in bf16 rounded.
template <class Element>
struct Product {
  Factors<Element> factors;
  std::int64_t inner, width, columns;
  Element* to;

  template <class Sums>
  void tile(typename Sums::Shapes shapes, std::int64_t row, std::int64_t vector) const {
    Sums tile(shapes);
    tile.set_to_zero();
    tile.prefetch(to + row * width + (vector + kAmxVectors) * kLanes, width);
    tile.add(factors.from(row, vector), inner);
    tile.for_each([&](int m, int v, const __m512& sum) {
      const std::int64_t column = (vector + v) * kLanes;
      store_rounded(to + (row + m) * width + column, lanes(columns - column), sum);
    });
  }
};

std::int64_t columns_from(const LinearShape& s, std::int64_t begin) {
  return s.in - begin < LinearKernels::kColumns ? s.in - begin : LinearKernels::kColumns;
}

void backward_data(const LinearShape& s, const Bf16Bits* gradient, const Bf16Bits* weights,
                   std::int64_t begin, Bf16Bits* buffer, Bf16Bits* into) {
  const std::int64_t columns = columns_from(s, begin);
  const GroupPairs pairs = row_pairs(s.out, columns, s.in);
  pairs.zip_all(weights + begin, buffer);
  TileCover(s.out).cover(
      s.batch, vectors(columns),
      Product<Bf16Bits>{
          {gradient, s.out, 2, buffer, pairs.pair_size()}, s.out, s.in, columns, into + begin});
}

void pair_input(const LinearShape& s, const Bf16Bits* x, Bf16Bits* pairs) {
  row_pairs(s.batch, s.in, s.in).zip_all(x, pairs);
}

void pair_gradients(const LinearShape& s, const Bf16Bits* gradient, Bf16Bits* pairs) {
  const GroupPairs zipped = row_pairs(s.batch, s.out, s.out);
  zipped.zip_all(gradient, pairs);
  if (TileCover(2 * pairs_of(s.batch)).by_amx()) {
    transpose_pairs(pairs, zipped.pair_size(), pairs_of(s.batch), s.out, pairs + zipped.row_size(),
                    2 * pairs_of(s.batch));
  }
}

void backward_weights(const LinearShape& s, const Bf16Bits* gradient_pairs,
                      const Bf16Bits* input_pairs, std::int64_t begin, std::int64_t end,
                      Bf16Bits* weights) {
  const GroupPairs zipped = row_pairs(s.batch, s.out, s.out);
  const std::int64_t batch = 2 * pairs_of(s.batch);
  TileCover tiles(batch);
  const Bf16Bits* const a = tiles.by_amx() ? gradient_pairs + zipped.row_size() : gradient_pairs;
  const std::int64_t a_row = tiles.by_amx() ? batch : 2;
  const std::int64_t a_step = tiles.by_amx() ? 2 : zipped.pair_size();
  const std::int64_t b_step = row_pairs(s.batch, s.in, s.in).pair_size();
  tiles.cover(end - begin, vectors(s.in),
              Product<Bf16Bits>{{a + begin * a_row, a_row, a_step, input_pairs, b_step},
                                batch,
                                s.in,
                                s.in,
                                weights + begin * s.in});
}

void backward_weights_f32(const LinearShape& s, const float* gradient, const float* input,
                          std::int64_t begin, float* buffer, float* weights) {
  const std::int64_t columns = columns_from(s, begin);
  const std::int64_t step = vectors(columns) * kLanes;
  for (std::int64_t sample = 0; sample < s.batch; ++sample) {
    for (std::int64_t i = 0; i < columns; i += kLanes) {
      const float* const from = input + sample * s.in + begin + i;
      _mm512_storeu_ps(buffer + sample * step + i, _mm512_maskz_loadu_ps(lanes(columns - i), from));
    }
  }
  for_each_tile(
      s.out, vectors(columns),
      Product<float>{{gradient, 1, s.out, buffer, step}, s.batch, s.in, columns, weights + begin});
}

LinearKernels::LinearBufferSizes sizes(const LinearShape& s) {
  return {pairs_of(s.in) * vectors(s.batch) * kPairs,
          row_pairs(s.out, LinearKernels::kColumns, s.in).row_size(),
          s.batch * LinearKernels::kColumns, row_pairs(s.batch, s.in, s.in).row_size(),
          2 * row_pairs(s.batch, s.out, s.out).row_size()};
}

constexpr LinearKernels kKernels{
    &sizes,      &pack_input,     &forward,          &backward_data,
    &pair_input, &pair_gradients, &backward_weights, &backward_weights_f32};

}  // namespace

const LinearKernels* avx512_linear() { return is_supported() ? &kKernels : nullptr; }

}  // namespace mnist_train::models

#else

namespace mnist_train::models {

const LinearKernels* avx512_linear() { return nullptr; }

}  // namespace mnist_train::models

#endif
