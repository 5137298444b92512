// Compiled with AVX-512: must not use the standard library, whose inline functions could then end
// up in code for all processors.
#include "base/cpu.h"
#include "models/bf16_convolution.h"

#ifdef __AVX512BF16__

#include "models/tiles_avx512.h"

namespace mnist_train::models {

namespace {

using namespace avx512;

void pack_forward(const ConvolutionShape& s, const Bf16Bits* weights, const Bf16Bits* bias,
                  Bf16Bits* packed, float* packed_bias) {
  const std::int64_t columns = vectors(s.out_channels) * kLanes;
  const auto weight = [&](std::int64_t ky, std::int64_t k, std::int64_t channel) {
    return channel < s.out_channels ? weights[(channel * s.kernel + ky) * s.run() + k]
                                    : Bf16Bits{0};
  };
  pack(s.kernel, s.run(), columns, weight, packed);
  for (std::int64_t i = 0; i < columns; ++i) {
    packed_bias[i] = i < s.out_channels ? to_float(bias[i]) : 0;
  }
}

void pack_data(const ConvolutionShape& s, const Bf16Bits* weights, Bf16Bits* packed) {
  const auto weight = [&](std::int64_t ky, std::int64_t channel, std::int64_t k) {
    return k < s.run() ? weights[(channel * s.kernel + ky) * s.run() + k] : Bf16Bits{0};
  };
  pack(s.kernel, s.out_channels, vectors(s.run()) * kLanes, weight, packed);
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
      tile.add(
          Factors<Bf16Bits>{in + (ky * s.width + x) * s.in_channels, s.in_channels, 2,
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
  const std::int64_t size = s.image_size();
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

/// The gradient of a kernel row's weights is a product over the output pixels, with a row for each
/// output channel and the input's run in the vectors.
void backward_weights(const ConvolutionShape& s, const Bf16Bits* in, const Bf16Bits* gradient,
                      Bf16Bits* pairs, float* weight_sums, float* bias) {
  const GroupPairs inputs = input_pairs(s);
  const GroupPairs gradients = gradient_pairs(s);
  Bf16Bits* const zipped_gradient = pairs;
  Bf16Bits* const zipped_in = pairs + gradients.rows * gradients.row_size();
  const std::int64_t width = vectors(s.run()) * kLanes;
  inputs.zip_all(in, zipped_in);
  gradients.zip_all(gradient, zipped_gradient);
  add_bias_sums(gradients, zipped_gradient, bias);
  const std::int64_t all_pairs = gradients.rows * pairs_of(gradients.groups);
  TileCover tiles(2 * all_pairs);
  const Bf16Bits* a = zipped_gradient;
  std::int64_t a_row = 2;
  std::int64_t a_step = gradients.pair_size();
  if (tiles.by_amx()) {
    Bf16Bits* const transposed = zipped_in + inputs.rows * inputs.row_size();
    a_row = 2 * all_pairs;
    transpose(a, a_step, all_pairs, s.out_channels, transposed, a_row);
    a = transposed;
    a_step = 2;
  }
  for (std::int64_t ky = 0; ky < s.kernel; ++ky) {
    const WeightSums sums{a_row,
                          a_step,
                          inputs.pair_size(),
                          all_pairs,
                          width,
                          a,
                          zipped_in + ky * inputs.row_size(),
                          weight_sums + ky * s.out_channels * width};
    tiles.cover(s.out_channels, vectors(s.run()), sums);
  }
}

void unpack_weights(const ConvolutionShape& s, const float* weight_sums, const float* bias_sums,
                    Bf16Bits* weights, Bf16Bits* bias) {
  const std::int64_t width = vectors(s.run()) * kLanes;
  for (std::int64_t o = 0; o < s.out_channels; ++o) {
    for (std::int64_t ky = 0; ky < s.kernel; ++ky, weights += s.run()) {
      const float* const from = weight_sums + (ky * s.out_channels + o) * width;
      for (std::int64_t k = 0; k < s.run(); k += kLanes) {
        store_rounded(weights + k, lanes(s.run() - k), _mm512_loadu_ps(from + k));
      }
    }
    store_rounded(bias + o, 1, _mm512_set1_ps(bias_sums[o]));
  }
}

Bf16Convolution::BufferSizes sizes(const ConvolutionShape& s) {
  const std::int64_t out = vectors(s.out_channels);
  const std::int64_t run = vectors(s.run());
  const GroupPairs inputs = input_pairs(s);
  const GroupPairs gradients = gradient_pairs(s);
  return {s.kernel * pairs_of(s.run()) * out * kPairs,
          s.kernel * pairs_of(s.out_channels) * run * kPairs,
          out * kLanes,
          s.image_size(),
          inputs.rows * inputs.row_size() + 2 * gradients.rows * gradients.row_size(),
          s.kernel * s.out_channels * run * kLanes};
}

constexpr Bf16Convolution kKernels{&sizes,         &pack_forward,     &pack_data,     &forward,
                                   &backward_data, &backward_weights, &unpack_weights};

}  // namespace

const Bf16Convolution* avx512_bf16_convolution() {
  return cpu_features().avx512_bf16 ? &kKernels : nullptr;
}

bool multiplies_by_amx() { return cpu_features().amx_bf16; }

}  // namespace mnist_train::models

#else

namespace mnist_train::models {

const Bf16Convolution* avx512_bf16_convolution() { return nullptr; }
bool multiplies_by_amx() { return false; }

}  // namespace mnist_train::models

#endif
