// Compiled with AVX-512 switched on: nothing of the standard library may be used here, or its
// inline functions could end up in the program for all processors.
#include "models/bf16_convolution.h"

#ifdef __AVX512BF16__

#include "models/bf16_pixel_groups_avx512.h"
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
  const PixelGroup group = group_of(s);
  const PackedWeights to(s.kernel, group.run, group.channels, packed);
  for (std::int64_t i = 0; i < vectors(group.channels) * kLanes; ++i) packed_bias[i] = 0;
  for (std::int64_t channel = 0; channel < s.out_channels; ++channel) {
    for (std::int64_t pixel = 0; pixel < group.pixels; ++pixel) {
      const std::int64_t column = pixel * s.out_channels + channel;
      packed_bias[column] = to_float(bias[channel]);
      const Bf16Bits* from = weights + channel * s.kernel * s.run();
      for (std::int64_t ky = 0; ky < s.kernel; ++ky) {
        for (std::int64_t k = 0; k < s.run(); ++k) {
          to.at(ky, pixel * s.in_channels + k, column) = *from++;
        }
      }
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
  PixelGroup group;
  const Bf16Bits* in;  // the uppermost input row under the kernel
  const Bf16Bits* packed;
  const float* bias;
  Bf16Bits* out;

  template <class Sums>
  void tile(typename Sums::Shapes shapes, std::int64_t x, std::int64_t vector) const {
    Sums tile(shapes);
    tile.for_each(
        [&](int, int v, __m512& sum) { sum = _mm512_loadu_ps(bias + (vector + v) * kLanes); });
    const std::int64_t b_step = vectors(group.channels) * kPairs;
    const std::int64_t a_row = group.pixels * s.in_channels;
    for (std::int64_t ky = 0; ky < s.kernel; ++ky) {
      tile.add({in + ky * s.width * s.in_channels + x * a_row, a_row, 2,
                packed + ky * pairs_of(group.run) * b_step + vector * kPairs, b_step},
               group.run);
    }
    tile.for_each([&](int m, int v, const __m512& sum) {
      const std::int64_t channel = (vector + v) * kLanes;
      store_rounded(out + (x + m) * group.channels + channel, lanes(group.channels - channel), sum);
    });
  }
};

void forward(const ConvolutionShape& s, const Bf16Bits* in, const Bf16Bits* packed,
             const float* packed_bias, Bf16Bits* out) {
  const PixelGroup group = group_of(s);
  TileCover tiles(group.run);
  for (std::int64_t y = 0; y < s.out_height(); ++y) {
    const ForwardRow row{s,      group,       in + y * s.width * s.in_channels,
                         packed, packed_bias, out + y * s.out_width() * s.out_channels};
    tiles.cover(s.out_width() / group.pixels, vectors(group.channels), row);
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

/// The gradient of a kernel row's weights is the product of two matrices over the groups. Returns
/// whether the input's runs go into the vectors, where that leaves fewer lanes empty than the
/// output channels would.
bool run_in_vectors(const PixelGroup& group) {
  return group.channels * vectors(group.run) < group.run * vectors(group.channels);
}

/// The gradient of one kernel row's weights: sums += a * b, over pairs of groups.
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
  const bool runs = run_in_vectors(group_of(s));
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
  const PixelGroup group = group_of(s);
  const bool runs = run_in_vectors(group);
  const std::int64_t rows = runs ? group.channels : group.run;
  const std::int64_t width = vectors(runs ? group.run : group.channels) * kLanes;
  const __m512i apart =
      _mm512_mullo_epi32(_mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15),
                         _mm512_set1_epi32(static_cast<int>(runs ? 1 : width)));
  for (std::int64_t o = 0; o < s.out_channels; ++o) {
    for (std::int64_t ky = 0; ky < s.kernel; ++ky, weights += s.run()) {
      for (std::int64_t k = 0; k < s.run(); k += kLanes) {
        const __mmask16 mask = lanes(s.run() - k);
        __m512 sum = _mm512_setzero_ps();
        for (std::int64_t pixel = 0; pixel < group.pixels; ++pixel) {
          const std::int64_t channel = pixel * s.out_channels + o;
          const std::int64_t of_run = pixel * s.in_channels + k;
          const std::int64_t row = ky * rows + (runs ? channel : of_run);
          const float* const from = weight_sums + row * width + (runs ? of_run : channel);
          sum = _mm512_add_ps(sum, _mm512_mask_i32gather_ps(sum, mask, apart, from, sizeof(float)));
        }
        store_rounded(weights + k, mask, sum);
      }
    }
    const float sum = bias_sums[o] + (group.pixels == 2 ? bias_sums[s.out_channels + o] : 0);
    store_rounded(bias + o, 1, _mm512_set1_ps(sum));
  }
}

Bf16Convolution::BufferSizes sizes(const ConvolutionShape& s) {
  const PixelGroup group = group_of(s);
  const std::int64_t out = vectors(group.channels);
  const GroupPairs inputs = input_pairs(s);
  const GroupPairs gradients = gradient_pairs(s);
  const bool runs = run_in_vectors(group);
  return {s.kernel * pairs_of(group.run) * out * kPairs,
          s.kernel * pairs_of(s.out_channels) * vectors(s.run()) * kPairs,
          out * kLanes,
          s.height * s.width * s.in_channels,
          2 * (inputs.rows * inputs.row_size() + gradients.rows * gradients.row_size()),
          s.kernel * kLanes * (runs ? group.channels * vectors(group.run) : group.run * out)};
}

constexpr Bf16Convolution kKernels{&sizes,         &pack_forward,     &pack_data,     &forward,
                                   &backward_data, &backward_weights, &unpack_weights};

}  // namespace

const Bf16Convolution* avx512_bf16_convolution() {
  return avx512::is_supported() ? &kKernels : nullptr;
}

}  // namespace mnist_train::models

#else

namespace mnist_train::models {

const Bf16Convolution* avx512_bf16_convolution() { return nullptr; }

}  // namespace mnist_train::models

#endif
