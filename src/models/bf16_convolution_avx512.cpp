// Compiled with AVX-512 switched on: nothing of the standard library may be used here, or its
// inline functions could end up in the program for all processors.
#include "models/bf16_convolution.h"

#ifdef __AVX512BF16__

#include "models/pairs_avx512.h"
#include "models/tile_cover_avx512.h"

namespace mnist_train::models {

namespace {

using namespace avx512;

/// Where weights are packed: [kernel row][pairs of the inner dimension][columns, in whole vectors]
/// [2], filled up with zeros.
class PackedWeights {
 public:
  PackedWeights(std::int64_t kernel, std::int64_t inner, std::int64_t columns, Bf16Bits* packed)
      : pair_size_(vectors(columns) * kPairs),
        row_size_(pairs_of(inner) * pair_size_),
        to_(packed) {
    for (std::int64_t i = 0; i < kernel * row_size_; i += kPairs) {
      _mm512_storeu_si512(to_ + i, _mm512_setzero_si512());
    }
  }

  Bf16Bits& at(std::int64_t row, std::int64_t i, std::int64_t column) const {
    return to_[row * row_size_ + i / 2 * pair_size_ + 2 * column + i % 2];
  }

 private:
  std::int64_t pair_size_, row_size_;
  Bf16Bits* to_;
};

void pack_forward(const ConvolutionShape& s, const Bf16Bits* weights, const Bf16Bits* bias,
                  Bf16Bits* packed, float* packed_bias) {
  const PackedWeights to(s.kernel, s.run(), s.out_channels, packed);
  for (std::int64_t i = 0; i < vectors(s.out_channels) * kLanes; ++i) packed_bias[i] = 0;
  for (std::int64_t channel = 0; channel < s.out_channels; ++channel) {
    packed_bias[channel] = to_float(bias[channel]);
    for (std::int64_t ky = 0; ky < s.kernel; ++ky) {
      for (std::int64_t k = 0; k < s.run(); ++k) to.at(ky, k, channel) = *weights++;
    }
  }
}

void pack_data(const ConvolutionShape& s, const Bf16Bits* weights, Bf16Bits* packed) {
  const PackedWeights to(s.kernel, s.out_channels, s.run(), packed);
  for (std::int64_t channel = 0; channel < s.out_channels; ++channel) {
    for (std::int64_t ky = 0; ky < s.kernel; ++ky) {
      for (std::int64_t k = 0; k < s.run(); ++k) to.at(ky, channel, k) = *weights++;
    }
  }
}

/// One output row of one image.
struct ForwardRow {
  const ConvolutionShape& s;
  const Bf16Bits* in;  // the uppermost input row under the kernel
  const Bf16Bits* packed;
  const float* bias;
  Bf16Bits* out;

  template <class Sums>
  void tile(typename Sums::Shapes shapes, std::int64_t x, std::int64_t vector) const {
    Sums tile(shapes);
    tile.for_each(
        [&](int, int v, __m512& sum) { sum = _mm512_loadu_ps(bias + (vector + v) * kLanes); });
    const std::int64_t b_step = vectors(s.out_channels) * kPairs;
    for (std::int64_t ky = 0; ky < s.kernel; ++ky) {
      tile.add({in + (ky * s.width + x) * s.in_channels, s.in_channels, 2,
                packed + ky * pairs_of(s.run()) * b_step + vector * kPairs, b_step},
               s.run());
    }
    tile.for_each([&](int m, int v, const __m512& sum) {
      const std::int64_t channel = (vector + v) * kLanes;
      store_rounded(out + (x + m) * s.out_channels + channel, lanes(s.out_channels - channel), sum);
    });
  }
};

void forward(const ConvolutionShape& s, const Bf16Bits* in, const Bf16Bits* packed,
             const float* packed_bias, Bf16Bits* out) {
  TileCover tiles(s.run());
  for (std::int64_t y = 0; y < s.out_height(); ++y) {
    const ForwardRow row{s, in + y * s.width * s.in_channels, packed, packed_bias,
                         out + y * s.out_width() * s.out_channels};
    tiles.cover(s.out_width(), vectors(s.out_channels), row);
  }
}

/// The part of an image's gradient that one column of output pixels gives through one row of the
/// kernel. Tiles go down the column, where the pixels that they add to do not overlap.
struct DataColumn {
  const ConvolutionShape& s;
  const Bf16Bits* gradient;  // at the uppermost pixel
  const Bf16Bits* packed;    // of the kernel's row
  float* sums;               // of the image, where the uppermost pixel adds to

  template <class Sums>
  void tile(typename Sums::Shapes shapes, std::int64_t y, std::int64_t vector) const {
    const std::int64_t b_step = vectors(s.run()) * kPairs;
    const std::int64_t row = s.out_width() * s.out_channels;
    Sums tile(shapes);
    tile.set_to_zero();
    tile.add(Factors<Bf16Bits>{gradient, row, 2, packed, b_step}.from(y, vector), s.out_channels);
    tile.for_each([&](int m, int v, const __m512& sum) {
      const std::int64_t k = (vector + v) * kLanes;
      float* const to = sums + (y + m) * s.width * s.in_channels + k;
      const __mmask16 mask = lanes(s.run() - k);
      _mm512_mask_storeu_ps(to, mask, _mm512_add_ps(sum, _mm512_maskz_loadu_ps(mask, to)));
    });
  }
};

void backward_data(const ConvolutionShape& s, const Bf16Bits* gradient, const Bf16Bits* packed,
                   float* image_sums, Bf16Bits* into) {
  const std::int64_t size = s.height * s.width * s.in_channels;
  const std::int64_t packed_row = pairs_of(s.out_channels) * vectors(s.run()) * kPairs;
  TileCover tiles(s.out_channels);
  for (std::int64_t i = 0; i < size; ++i) image_sums[i] = 0;
  for (std::int64_t ky = 0; ky < s.kernel; ++ky) {
    for (std::int64_t x = 0; x < s.out_width(); ++x) {
      const DataColumn column{s, gradient + x * s.out_channels, packed + ky * packed_row,
                              image_sums + (ky * s.width + x) * s.in_channels};
      tiles.cover(s.out_height(), vectors(s.run()), column);
    }
  }
  for (std::int64_t i = 0; i < size; i += kLanes) {
    const __mmask16 mask = lanes(size - i);
    store_rounded(into + i, mask, _mm512_maskz_loadu_ps(mask, image_sums + i));
  }
}

GroupPairs input_pairs(const ConvolutionShape& s) {
  return {s.height, s.out_width(), s.width * s.in_channels, s.in_channels, s.run()};
}

GroupPairs gradient_pairs(const ConvolutionShape& s) {
  return {s.out_height(), s.out_width(), s.out_width() * s.out_channels, s.out_channels,
          s.out_channels};
}

/// The gradient of a kernel row's weights is the product of two matrices over the output pixels.
/// Returns whether the input's runs go into the vectors, where that leaves fewer lanes empty than
/// the output channels would.
bool run_in_vectors(const ConvolutionShape& s) {
  return s.out_channels * vectors(s.run()) < s.run() * vectors(s.out_channels);
}

/// The gradient of one kernel row's weights: sums += a * b, over pairs of pixels.
struct WeightSums {
  std::int64_t a_row, a_step, b_step, pairs, width;
  const Bf16Bits* a;
  const Bf16Bits* b;
  float* sums;  // [rows][width]

  template <class Sums>
  void tile(typename Sums::Shapes shapes, std::int64_t row, std::int64_t vector) const {
    Sums tile(shapes);
    float* const at = sums + row * width + vector * kLanes;
    tile.load(at, width);
    tile.add(Factors<Bf16Bits>{a, a_row, a_step, b, b_step}.from(row, vector), 2 * pairs);
    tile.store(at, width);
  }
};

void add_bias_sums(const GroupPairs& pairs, const Bf16Bits* zipped, float* bias) {
  const __m512i ones = _mm512_set1_epi16(0x3f80);
  const std::int64_t count = pairs.rows * pairs_of(pairs.groups);
  for (std::int64_t v = 0; v < vectors(pairs.elements); ++v) {
    __m512 sum = _mm512_loadu_ps(bias + v * kLanes);
    for (std::int64_t i = 0; i < count; ++i) {
      const Bf16Bits* const from = zipped + i * pairs.pair_size() + v * kPairs;
      sum = add_products(sum, _mm512_loadu_si512(from), ones);
    }
    _mm512_storeu_ps(bias + v * kLanes, sum);
  }
}

void backward_weights(const ConvolutionShape& s, const Bf16Bits* in, const Bf16Bits* gradient,
                      Bf16Bits* pairs, float* weight_sums, float* bias) {
  const GroupPairs inputs = input_pairs(s);
  const GroupPairs gradients = gradient_pairs(s);
  Bf16Bits* const zipped_gradient = pairs;
  Bf16Bits* const zipped_in = pairs + gradients.rows * gradients.row_size();
  const bool runs = run_in_vectors(s);
  const GroupPairs& rows = runs ? gradients : inputs;
  const GroupPairs& columns = runs ? inputs : gradients;
  const std::int64_t width = vectors(columns.elements) * kLanes;
  inputs.zip_all(in, zipped_in);
  gradients.zip_all(gradient, zipped_gradient);
  add_bias_sums(gradients, zipped_gradient, bias);
  const std::int64_t pairs_of_row = pairs_of(gradients.groups);
  TileCover tiles(2 * gradients.rows * pairs_of_row);
  const Bf16Bits* a = runs ? zipped_gradient : zipped_in;
  const Bf16Bits* b = runs ? zipped_in : zipped_gradient;
  std::int64_t a_row = 2;
  std::int64_t a_step = rows.pair_size();
  if (tiles.by_amx()) {
    Bf16Bits* const transposed = zipped_in + inputs.rows * inputs.row_size();
    a_row = 2 * rows.rows * pairs_of_row;
    transpose(a, a_step, rows.rows * pairs_of_row, rows.elements, transposed, a_row);
    a = transposed;
    a_step = 2;
  }
  for (std::int64_t ky = 0; ky < s.kernel; ++ky) {
    const std::int64_t pair = ky * pairs_of_row;  // where the inputs of this kernel row begin
    const WeightSums sums{a_row,
                          a_step,
                          columns.pair_size(),
                          gradients.rows * pairs_of_row,
                          width,
                          runs ? a : a + pair * a_step,
                          runs ? b + pair * columns.pair_size() : b,
                          weight_sums + ky * rows.elements * width};
    tiles.cover(rows.elements, vectors(columns.elements), sums);
  }
}

void unpack_weights(const ConvolutionShape& s, const float* weight_sums, const float* bias_sums,
                    Bf16Bits* weights, Bf16Bits* bias) {
  const bool runs = run_in_vectors(s);
  const std::int64_t rows = runs ? s.out_channels : s.run();
  const std::int64_t width = vectors(runs ? s.run() : s.out_channels) * kLanes;
  const __m512i apart =
      _mm512_mullo_epi32(_mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15),
                         _mm512_set1_epi32(static_cast<int>(runs ? 1 : width)));
  for (std::int64_t o = 0; o < s.out_channels; ++o) {
    for (std::int64_t ky = 0; ky < s.kernel; ++ky, weights += s.run()) {
      for (std::int64_t k = 0; k < s.run(); k += kLanes) {
        const __mmask16 mask = lanes(s.run() - k);
        const std::int64_t row = ky * rows + (runs ? o : k);
        const float* const from = weight_sums + row * width + (runs ? k : o);
        store_rounded(
            weights + k, mask,
            _mm512_mask_i32gather_ps(_mm512_setzero_ps(), mask, apart, from, sizeof(float)));
      }
    }
    store_rounded(bias + o, 1, _mm512_set1_ps(bias_sums[o]));
  }
}

Bf16Convolution::BufferSizes sizes(const ConvolutionShape& s) {
  const std::int64_t out = vectors(s.out_channels);
  const GroupPairs inputs = input_pairs(s);
  const GroupPairs gradients = gradient_pairs(s);
  return {
      s.kernel * pairs_of(s.run()) * out * kPairs,
      s.kernel * pairs_of(s.out_channels) * vectors(s.run()) * kPairs,
      out * kLanes,
      s.height * s.width * s.in_channels,
      2 * (inputs.rows * inputs.row_size() + gradients.rows * gradients.row_size()),
      s.kernel * kLanes * (run_in_vectors(s) ? s.out_channels * vectors(s.run()) : s.run() * out)};
}

constexpr Bf16Convolution kKernels{&sizes,         &pack_forward,     &pack_data,     &forward,
                                   &backward_data, &backward_weights, &unpack_weights};

}  // namespace

const Bf16Convolution* avx512_bf16_convolution() {
  return avx512::is_supported() ? &kKernels : nullptr;
}

bool multiplies_by_amx() { return avx512::is_supported() && avx512::uses_amx(); }

}  // namespace mnist_train::models

#else

namespace mnist_train::models {

const Bf16Convolution* avx512_bf16_convolution() { return nullptr; }
bool multiplies_by_amx() { return false; }

}  // namespace mnist_train::models

#endif
