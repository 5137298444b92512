#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "cpu_kernels/batch_norm.h"
#include "cpu_kernels/blocked.h"
#include "cpu_kernels/graph.h"
#include "cpu_kernels/kernels.h"
#include "support/catch.h"

namespace mnist_train::cpu_kernels {
namespace {

/// Plain images and the same in blocks.
template <class Element>
struct Images {
  ValueShape shape;
  std::int64_t count;
  std::vector<Element> blocks;

  Images(const ValueShape& of, std::int64_t images, Draws<Element>& draws)
      : shape(of),
        count(images),
        blocks(to_blocks(of, images, draws.numbers(images * of.channels * of.pixels()))) {}
  /// Of zeros.
  Images(const ValueShape& of, std::int64_t images)
      : shape(of), count(images), blocks(empty_blocks<Element>(of, images)) {}

  std::vector<double> values() const { return from_blocks(shape, count, blocks); }
  Element* data() { return blocks.data(); }
  std::size_t channel_of(std::size_t index) const {
    return index / static_cast<std::size_t>(shape.pixels()) %
           static_cast<std::size_t>(shape.channels);
  }
};

/// Batch norm, sum and ReLU in fp64.
struct BatchNormReference {
  std::vector<double> mean, variance, y, dx, g, dweight, dbias;

  template <class Element>
  BatchNormReference(const Images<Element>& images, const std::vector<double>& x,
                     const std::vector<float>& weight, const std::vector<float>& bias,
                     const std::vector<double>& residual, const std::vector<double>& rounded_y,
                     const std::vector<double>& dy) {
    const std::size_t channels = weight.size();
    const double count = static_cast<double>(x.size()) / static_cast<double>(channels);
    mean.resize(channels);
    variance = dweight = dbias = mean;
    for (std::size_t i = 0; i < x.size(); ++i) mean[images.channel_of(i)] += x[i] / count;
    for (std::size_t i = 0; i < x.size(); ++i) {
      const std::size_t c = images.channel_of(i);
      variance[c] += (x[i] - mean[c]) * (x[i] - mean[c]) / count;
    }
    const auto normalized = [&](std::size_t i) {
      const std::size_t c = images.channel_of(i);
      return (x[i] - mean[c]) / std::sqrt(variance[c] + 1e-5);
    };
    y.resize(x.size());
    dx = g = y;
    for (std::size_t i = 0; i < x.size(); ++i) {
      const std::size_t c = images.channel_of(i);
      y[i] = std::max(0.0, normalized(i) * weight[c] + bias[c] + residual[i]);
      g[i] = rounded_y[i] > 0 ? dy[i] : 0;
      dbias[c] += g[i];
      dweight[c] += g[i] * normalized(i);
    }
    for (std::size_t i = 0; i < x.size(); ++i) {
      const std::size_t c = images.channel_of(i);
      dx[i] = weight[c] / std::sqrt(variance[c] + 1e-5) *
              (g[i] - dbias[c] / count - normalized(i) * dweight[c] / count);
    }
  }
};

template <class Element>
void check_batch_norm(const ValueShape& shape, std::int64_t count) {
  if (!is_supported<Element>()) return;
  INFO(count << " images " << shape.channels << "x" << shape.height << "x" << shape.width);
  Draws<Element> draws(static_cast<std::uint32_t>(shape.channels));
  Images<Element> x(shape, count, draws);
  for_each_element<Element>(shape, count, [&](auto, auto at) {  // far from zero
    round_to(value_of(x.blocks[at]) + 10, x.blocks[at]);
  });
  Images<Element> residual(shape, count, draws);
  Images<Element> dy(shape, count, draws);
  Images<Element> y(shape, count);
  Images<Element> dx(shape, count);
  Images<Element> g(shape, count);
  const auto channels = static_cast<std::size_t>(shape.channels);
  std::vector<float> weight(channels), bias(channels), mean(channels), variance(channels, 1),
      dweight(channels), dbias(channels);
  for (std::size_t c = 0; c < channels; ++c) {
    weight[c] = 0.5F + static_cast<float>(c % 5);
    bias[c] = static_cast<float>(c % 3) - 1;
  }
  const BatchSize batch{count};
  BlockedBatchNorm<Element> norm(shape, 1e-5, 0.1, /*relu=*/true, kNoLimit);
  norm.set_tensors({weight.data(), bias.data(), mean.data(), variance.data(), false, dweight.data(),
                    dbias.data()});
  norm.set_batch(batch);
  norm.begin_statistics(batch.blocks(), x.data());
  for (std::int64_t block = 0; block < batch.blocks(); ++block) {
    Element* const of_block = x.data() + block * shape.template block_size<Element>();
    norm.add_statistics(block, block, of_block, 0, shape.height / 2);
    norm.add_statistics(block, block, of_block, shape.height / 2, shape.height);
  }
  norm.finish_statistics();
  norm.normalize(x.data(), residual.data(), y.data());
  norm.begin_gradients(batch.blocks());
  for (std::int64_t block = 0; block < batch.blocks(); ++block) {
    const std::int64_t at = block * shape.template block_size<Element>();
    norm.add_gradients(block, block, dy.data() + at, y.data() + at, x.data() + at, 0, shape.height);
  }
  norm.backward(dy.data(), y.data(), x.data(), dx.data(), g.data());
  const BatchNormReference expected(x, x.values(), weight, bias, residual.values(), y.values(),
                                    dy.values());
  const double error = tolerance<Element>();
  CHECK(relative_error(y.values(), expected.y) <= error);
  CHECK(relative_error(g.values(), expected.g) == 0);
  CHECK(relative_error(dx.values(), expected.dx) <=
        (count * shape.pixels() > 1 ? 2 : 1e30) * error);
  CHECK(relative_error(values_of(dweight), expected.dweight) <= 2e-6);
  CHECK(relative_error(values_of(dbias), expected.dbias) <= 6e-7);
  for (std::size_t c = 0; c < channels; ++c) {
    const double samples = static_cast<double>(count * shape.pixels());
    CHECK(mean[c] == testing::Approx(0.1 * expected.mean[c]));
    CHECK(variance[c] ==
          testing::Approx(0.9 + 0.1 * expected.variance[c] * samples / std::max(samples - 1, 1.0)));
  }
  // Images that are no samples have no gradients.
  double others = 0;
  for (std::int64_t image = count; image < batch.blocks() * kImages; ++image) {
    for (std::int64_t c = 0; c < shape.channels; ++c) {
      others += std::fabs(value_of(dx.blocks[blocked_index<Element>(shape, image, c, 0, 0)]));
    }
  }
  CHECK(others == 0);
}

TEST_CASE("Batch norm with a residual and ReLU agrees with fp64") {
  for (const ValueShape& shape :
       {ValueShape{3, 5, 4}, ValueShape{16, 7, 7}, ValueShape{33, 2, 1}, ValueShape{8, 12, 12}}) {
    for (const std::int64_t count : {5, 32, 70}) {
      check_batch_norm<float>(shape, count);
      check_batch_norm<Bf16Bits>(shape, count);
    }
  }
}

/// Returns the rows or columns in the window of an output. A kernel without size is adaptive.
std::vector<std::int64_t> window(std::int64_t at, std::int64_t in, std::int64_t out,
                                 std::int64_t kernel, std::int64_t stride, std::int64_t padding,
                                 std::int64_t dilation) {
  std::vector<std::int64_t> places;
  for (std::int64_t i = 0; i < in; ++i) {
    const std::int64_t from_first = i - (at * stride - padding);
    const bool is_within = kernel == 0 ? i >= at * in / out && i < ceil_divide((at + 1) * in, out)
                                       : from_first >= 0 && from_first % dilation == 0 &&
                                             from_first / dilation < kernel;
    if (is_within) places.push_back(i);
  }
  return places;
}

/// Pooling in fp64; `max` takes the first of equal elements, after a ReLU.
struct PoolingReference {
  std::vector<double> y, dx;

  PoolingReference(const PoolingShape& s, bool max, const std::vector<double>& x,
                   const std::vector<double>& dy) {
    y.resize(dy.size());
    dx.resize(x.size());
    for (std::size_t out = 0; out < dy.size(); ++out) {
      const auto pixel = static_cast<std::int64_t>(out) % s.out.pixels();
      const std::int64_t plane = static_cast<std::int64_t>(out) / s.out.pixels() * s.in.pixels();
      const auto columns = window(pixel % s.out.width, s.in.width, s.out.width, s.kernel.width,
                                  s.stride.width, s.padding.width, s.dilation.width);
      std::vector<std::size_t> places;
      for (const std::int64_t row :
           window(pixel / s.out.width, s.in.height, s.out.height, s.kernel.height, s.stride.height,
                  s.padding.height, s.dilation.height)) {
        for (const std::int64_t column : columns) {
          places.push_back(static_cast<std::size_t>(plane + row * s.in.width + column));
        }
      }
      if (max) {
        const auto best = *std::max_element(places.begin(), places.end(),
                                            [&](auto a, auto b) { return x[a] < x[b]; });
        y[out] = std::max(0.0, x[best]);
        if (x[best] > 0) dx[best] += dy[out];
        continue;
      }
      const bool counts_padding = s.counts_padding && s.kernel.height > 0;
      const auto count =
          static_cast<double>(counts_padding ? s.kernel.height * s.kernel.width
                                             : static_cast<std::int64_t>(places.size()));
      for (const std::size_t in : places) {
        y[out] += x[in] / count;
        dx[in] += dy[out] / count;
      }
    }
  }
};

template <class Element>
void check_pooling(const PoolingShape& s, std::int64_t count, bool max) {
  if (!is_supported<Element>()) return;
  INFO((max ? "max " : "average ") << s.in.channels << "x" << s.in.height << "x" << s.in.width
                                   << ", kernel " << s.kernel.height << "x" << s.kernel.width);
  Draws<Element> draws(7, /*integers=*/max);
  Images<Element> x(s.in, count, draws);
  Images<Element> dy(s.out, count, draws);
  Images<Element> y(s.out, count);
  Images<Element> dx(s.in, count);
  std::vector<std::uint8_t> taps(y.blocks.size());
  const PoolingPlan plan(s, s.in.template pixel_size<Element>());
  const LayerKernels<Element>& kernels = kernel_table<Element>()->layers;
  for (std::int64_t block = 0; block < BatchSize{count}.blocks(); ++block) {
    const std::int64_t in = block * s.in.template block_size<Element>();
    const std::int64_t out = block * s.out.template block_size<Element>();
    if (max) {
      kernels.max_pool(plan.forward(), x.data() + in, /*relu=*/true, y.data() + out,
                       taps.data() + out);
      kernels.max_pool_gradient(plan.backward(), dy.data() + out, taps.data() + out,
                                dx.data() + in);
    } else {
      kernels.average_pool(plan.forward(), x.data() + in, y.data() + out);
      kernels.average_pool_gradient(plan.backward(), dy.data() + out, dx.data() + in);
    }
  }
  const PoolingReference expected(s, max, x.values(), dy.values());
  CHECK(relative_error(y.values(), expected.y) <= (max ? 0 : tolerance<Element>()));
  CHECK(relative_error(dx.values(), expected.dx) <= (max ? 0 : tolerance<Element>()));
}

TEST_CASE("pooling is left to LibTorch if a plan of its windows would be large") {
  CHECK(has_small_plan(
      {.in = {1, 112, 112}, .out = {1, 56, 56}, .kernel = {3, 3}, .stride = {2, 2}}));
  CHECK_FALSE(has_small_plan(
      {.in = {1, 224, 224}, .out = {1, 160, 160}, .kernel = {65, 65}, .stride = {1, 1}}));
}

TEST_CASE("Pooling agrees with fp64") {
  const std::vector<PoolingShape> shapes{
      {{3, 6, 8}, {3, 3, 4}, {2, 2}, {2, 2}},
      {{16, 7, 7}, {16, 3, 3}, {3, 3}, {2, 2}},
      {{5, 9, 6}, {5, 5, 3}, {3, 3}, {2, 2}, {1, 1}},
      {{4, 8, 8}, {4, 4, 4}, {3, 3}, {1, 1}, {0, 0}, {2, 2}},
      {{2, 5, 5}, {2, 5, 5}, {3, 3}, {1, 1}, {1, 1}, {1, 1}, false},
      {{6, 5, 7}, {6, 2, 3}, {0, 0}, {1, 1}}};  // adaptive
  for (const PoolingShape& shape : shapes) {
    for (const bool max : {true, false}) {
      if (max ? shape.kernel.height == 0 : shape.dilation.height > 1) continue;
      check_pooling<float>(shape, 40, max);
      check_pooling<Bf16Bits>(shape, 40, max);
    }
  }
}

template <class Element>
void check_conversion(const ValueShape& shape, std::int64_t count, bool channels_last) {
  if (!is_supported<Element>()) return;
  Draws<Element> draws(5);
  const std::vector<Element> numbers = draws.numbers(count * shape.channels * shape.pixels());
  const PlainStrides strides =
      channels_last ? PlainStrides{shape.channels * shape.pixels(), 1, shape.width * shape.channels,
                                   shape.channels}
                    : PlainStrides{shape.channels * shape.pixels(), shape.pixels(), shape.width, 1};
  std::vector<Element> plain(numbers.size());
  for (std::size_t i = 0; i < numbers.size(); ++i) {
    const auto at = static_cast<std::int64_t>(i);
    const std::int64_t plane = at / shape.pixels();
    plain[static_cast<std::size_t>(
        plane / shape.channels * strides.image + plane % shape.channels * strides.channel +
        at % shape.pixels() / shape.width * strides.row + at % shape.width * strides.column)] =
        numbers[i];
  }
  std::vector<Element> block(empty_blocks<Element>(shape, count).size(), Element{1});
  kernel_table<Element>()->layers.from_plain(shape, plain.data(), strides, count, block.data());
  const std::vector<Element> expected = to_blocks(shape, count, numbers);
  const auto size = static_cast<std::size_t>(shape.template block_size<Element>());
  CHECK(std::equal(block.begin(), block.begin() + static_cast<std::ptrdiff_t>(size),
                   expected.begin()));
  std::vector<Element> back(plain.size());
  kernel_table<Element>()->layers.to_plain(shape, block.data(), strides, count, back.data());
  CHECK(back == plain);
}

TEST_CASE("Plain images become blocks and plain images again") {
  for (const ValueShape& shape : {ValueShape{1, 28, 28}, ValueShape{3, 5, 17}, ValueShape{10, 1, 1},
                                  ValueShape{77, 1, 1}, ValueShape{35, 3, 2}}) {
    for (const bool channels_last : {false, true}) {
      check_conversion<float>(shape, 32, channels_last);
      check_conversion<float>(shape, 7, channels_last);
      check_conversion<Bf16Bits>(shape, 20, channels_last);
    }
  }
}

std::uint32_t mix(std::uint32_t bits) {
  bits ^= bits >> 16;
  bits *= 0x7feb352d;
  bits ^= bits >> 15;
  bits *= 0x846ca68b;
  return bits ^ (bits >> 16);
}

/// `hashed_dropout` of models/layer_operations.cpp, for contiguous samples of `elements` elements.
template <class Element>
std::vector<double> dropped(const std::vector<Element>& x, const std::vector<std::int64_t>& seeds,
                            std::size_t elements, std::int64_t number, double p) {
  const std::uint32_t key = mix(static_cast<std::uint32_t>(number) * 0x9e3779b1 + 1);
  const auto scale = static_cast<float>(1 / (1 - p));
  std::vector<double> y;
  for (std::size_t i = 0; i < x.size(); ++i) {
    const auto bits = static_cast<std::uint64_t>(seeds[i / elements]);
    const std::uint32_t low = static_cast<std::uint32_t>(bits) ^ key;
    const auto place = static_cast<std::uint32_t>(i % elements);
    const std::uint64_t hash =
        mix(place * 0x9e3779b1 + low) ^ static_cast<std::uint32_t>(bits >> 32);
    Element result{};
    if (hash >= static_cast<std::uint64_t>(std::llround(p * 0x1p32))) {
      round_to(value_of(x[i]) * scale, result);
    }
    y.push_back(value_of(result));
  }
  return y;
}

std::vector<std::int64_t> random_seeds(std::int64_t count) {
  std::mt19937_64 engine(3);
  std::vector<std::int64_t> seeds;
  for (std::int64_t i = 0; i < count; ++i) seeds.push_back(static_cast<std::int64_t>(engine()));
  return seeds;
}

template <class Element>
void check_kernel(const ValueShape& shape, double p) {
  if (!is_supported<Element>()) return;
  INFO(shape.channels << " channels, p " << p);
  constexpr std::int64_t kSamples = 23;
  const std::vector<std::int64_t> seeds = random_seeds(kSamples);
  const std::vector<Element> x =
      Draws<Element>(5).numbers(kSamples * shape.channels * shape.pixels());
  const std::vector<Element> from = to_blocks(shape, kSamples, x);
  std::vector<Element> to = empty_blocks<Element>(shape, kSamples);
  kernel_table<Element>()->layers.drop({shape.pixels(), shape.channels, kSamples},
                                       make_dropout(7, p, seeds.data(), kSamples), from.data(),
                                       to.data());
  const auto elements = static_cast<std::size_t>(shape.channels * shape.pixels());
  CHECK(from_blocks(shape, kSamples, to) == dropped(x, seeds, elements, 7, p));
}

TEST_CASE("Dropout drops the same elements as models/layer_operations.cpp") {
  for (const double p : {0.5, 0.1, 0.0, 1 - 1e-12}) {  // the last one's limit is 2^32
    for (const ValueShape& shape : {ValueShape{3, 5, 7}, ValueShape{64, 1, 1}}) {
      check_kernel<float>(shape, p);
      check_kernel<Bf16Bits>(shape, p);
    }
  }
}

}  // namespace
}  // namespace mnist_train::cpu_kernels
