#include "cpu_kernels/convolution.h"

#include <algorithm>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "cpu_kernels/blocked.h"
#include "cpu_kernels/kernels.h"
#include "support/catch.h"

namespace mnist_train::cpu_kernels {
namespace {

std::string describe(const ConvolutionShape& s, std::int64_t images) {
  std::ostringstream text;
  text << images << " images " << s.in.channels << "x" << s.in.height << "x" << s.in.width << " -> "
       << s.out.channels << "x" << s.out.height << "x" << s.out.width << ", kernel "
       << s.kernel.height << "x" << s.kernel.width << ", stride " << s.stride.height << "x"
       << s.stride.width << ", padding " << s.padding.height << "x" << s.padding.width
       << (s.depthwise ? ", depthwise" : "");
  return text.str();
}

std::int64_t out_size(std::int64_t in, std::int64_t kernel, std::int64_t stride,
                      std::int64_t padding) {
  return (in + 2 * padding - kernel) / stride + 1;
}

/// Returns a random shape whose output is not empty.
ConvolutionShape random_shape(Draws<float>& draws) {
  const std::vector<std::int64_t> channels{1, 2, 3, 5, 6, 8, 16, 20, 32, 33, 48, 50, 64};
  const auto pick = [&] {
    return channels[static_cast<std::size_t>(
        draws.below(static_cast<std::int64_t>(channels.size())))];
  };
  for (;;) {
    ConvolutionShape s;
    s.in = {pick(), 1 + draws.below(9), 1 + draws.below(9)};
    s.out.channels = pick();
    s.kernel = {1 + draws.below(5), 1 + draws.below(5)};
    s.stride = {1 + draws.below(3), 1 + draws.below(3)};
    s.padding = {draws.below(3), draws.below(3)};
    s.out.height = out_size(s.in.height, s.kernel.height, s.stride.height, s.padding.height);
    s.out.width = out_size(s.in.width, s.kernel.width, s.stride.width, s.padding.width);
    if (s.in.height + 2 * s.padding.height >= s.kernel.height &&
        s.in.width + 2 * s.padding.width >= s.kernel.width) {
      return s;
    }
  }
}

/// A convolution's tensors, and the errors of its results relative to fp64 sums.
template <class Element>
class Case {
 public:
  Case(const ConvolutionShape& shape, std::int64_t images, std::uint32_t seed, bool integers)
      : s_(shape), images_(images), integers_(integers), convolution_(shape) {
    Draws<Element> draws(seed, integers);
    in_ = draws.numbers(images * s_.in.channels * s_.in.pixels());
    gradient_ = draws.numbers(images * s_.out.channels * s_.out.pixels());
    weights_ =
        draws.numbers(s_.out.channels * summed_channels(s_) * s_.kernel.height * s_.kernel.width);
    bias_ = draws.numbers(s_.out.channels);
  }

  void check() const {
    INFO(describe(s_, images_) << (kDepth<Element> == 2 ? ", bf16" : ", fp32"));
    const double limit = integers_ ? 0 : tolerance<Element>();
    CHECK(forward_error(/*relu=*/false) <= limit);
    CHECK(forward_error(/*relu=*/true) <= limit);
    CHECK(backward_error() <= limit);
    CHECK(weight_error() <= limit);
  }

 private:
  double forward_error(bool relu) const {
    std::vector<double> expected(gradient_.size());
    for (std::size_t i = 0; i < expected.size(); ++i) {
      expected[i] = to_float(bias_[i / static_cast<std::size_t>(s_.out.pixels()) % bias_.size()]);
    }
    for_each_product(s_, images_, [&](auto out, auto in, auto weight) {
      expected[out] += double(to_float(in_[in])) * to_float(weights_[weight]);
    });
    if (relu) {
      for (double& value : expected) value = std::max(value, 0.0);
    }
    const std::vector<Element> in = to_blocks(s_.in, images_, in_);
    std::vector<Element> out = empty_blocks<Element>(s_.out, images_);
    std::vector<Element> packed(static_cast<std::size_t>(convolution_.forward().packed_size()));
    convolution_.forward().compute({blocks(), last_images(), in.data(), weights_.data(),
                                    packed.data(), bias_.data(), nullptr, relu, out.data()},
                                   nullptr);
    return error(from_blocks(s_.out, images_, out), expected);
  }

  /// Returns the error of adding the gradient of the input to another gradient.
  double backward_error() const {
    std::vector<double> expected = to_doubles(in_);
    for_each_product(s_, images_, [&](auto out, auto in, auto weight) {
      expected[in] += double(to_float(gradient_[out])) * to_float(weights_[weight]);
    });
    const std::vector<Element> gradient = to_blocks(s_.out, images_, gradient_);
    std::vector<Element> dx = to_blocks(s_.in, images_, in_);
    std::vector<Element> packed(static_cast<std::size_t>(convolution_.backward().packed_size()));
    convolution_.backward().compute({blocks(), last_images(), gradient.data(), weights_.data(),
                                     packed.data(), nullptr, dx.data(), false, dx.data()},
                                    nullptr);
    return error(from_blocks(s_.in, images_, dx), expected);
  }

  double weight_error() const {
    std::vector<double> expected(weights_.size());
    for_each_product(s_, images_, [&](auto out, auto in, auto weight) {
      expected[weight] += double(to_float(gradient_[out])) * to_float(in_[in]);
    });
    const std::vector<Element> in = to_blocks(s_.in, images_, in_);
    const std::vector<Element> gradient = to_blocks(s_.out, images_, gradient_);
    std::vector<Element> scratch(static_cast<std::size_t>(convolution_.gradient_scratch(blocks())));
    std::vector<float> sums(static_cast<std::size_t>(convolution_.weight_sums()), 1e9F);
    std::vector<Element> found(weights_.size());
    convolution_.weight_gradient({blocks(), last_images(), in.data(), gradient.data(),
                                  scratch.data(), sums.data(), found.data()});
    return error(to_doubles(found), expected);
  }

  std::int64_t blocks() const { return ceil_divide(images_, kImages); }
  std::int64_t last_images() const { return images_ - (blocks() - 1) * kImages; }

  /// Returns the relative error; for integers, the result must equal the rounded exact sum.
  double error(const std::vector<double>& found, std::vector<double> expected) const {
    if (integers_) {
      for (double& value : expected) {
        Element rounded;
        round_to(static_cast<float>(value), rounded);
        value = to_float(rounded);
      }
    }
    return relative_error(found, expected);
  }

  ConvolutionShape s_;
  std::int64_t images_;
  bool integers_;
  Convolution<Element> convolution_;
  std::vector<Element> in_, gradient_, weights_, bias_;
};

/// Checks fp32 and bf16 if this CPU supports them.
void check(const ConvolutionShape& shape, std::int64_t images, std::uint32_t seed, bool integers) {
  if (is_supported<float>()) Case<float>(shape, images, seed, integers).check();
  if (is_supported<Bf16Bits>()) Case<Bf16Bits>(shape, images, seed + 1, integers).check();
}

void check_random_shapes(bool depthwise, std::uint32_t seed) {
  Draws<float> draws(seed);
  for (std::uint32_t i = 0; i < 100; ++i) {
    ConvolutionShape shape = random_shape(draws);
    if (depthwise) {
      shape.depthwise = true;
      shape.in.channels = shape.out.channels = 2 + draws.below(40);
      // Additional padding below and to the right.
      if (i % 3 == 0) shape.out = {shape.out.channels, shape.out.height + 1, shape.out.width + 1};
    }
    const std::int64_t images = i % 8 == 0 ? 1 + draws.below(70) : 1 + draws.below(8);
    check(shape, images, seed + i, /*integers=*/i % 2 == 0);
  }
}

TEST_CASE("convolutions of random shapes match sums in fp64") {
  check_random_shapes(/*depthwise=*/false, 1);
}

TEST_CASE("depthwise convolutions of random shapes match sums in fp64") {
  check_random_shapes(/*depthwise=*/true, 5);
}

TEST_CASE("convolutions over several bands of rows and several blocks match sums in fp64") {
  const ConvolutionShape many_rows{{16, 40, 40}, {3, 40, 40}, {3, 3}, {1, 1}, {1, 1}};
  const ConvolutionShape linear{{100, 1, 1}, {40, 1, 1}, {1, 1}};
  const ConvolutionShape depthwise{{20, 26, 26}, {20, 26, 26}, {5, 5}, {1, 1}, {2, 2}, true};
  const ConvolutionShape small{{100, 4, 4}, {100, 2, 2}, {3, 3}, {2, 2}, {1, 1}, true};
  for (const bool integers : {true, false}) {
    check(depthwise, 40, 7, integers);
    check(small, 40, 7, integers);
    check(many_rows, 33, 3, integers);
    check(linear, 200, 3, integers);
  }
}

template <class Element>
bool uses_winograd(const ConvolutionShape& shape) {
  return is_supported<Element>() &&
         Gather<Element>(shape, /*backward=*/false).view().winograd.tiles_per_pass > 0;
}

/// At least the forward passes use Winograd's algorithm in one of the types. For bf16, the outputs
/// of the last tiles have 1 to 4 rows and columns.
TEST_CASE("3x3 convolutions with many channels match sums in fp64") {
  struct Shape {
    std::int64_t in, out, height, width, padding, images;
  };
  const std::vector<Shape> shapes{
      {32, 32, 6, 8, 1, 33},    {33, 48, 9, 16, 1, 1},   {64, 20, 11, 8, 0, 1},
      {40, 70, 8, 13, 2, 1},    {128, 16, 6, 30, 1, 1},  {48, 48, 25, 9, 1, 1},
      {128, 128, 13, 13, 1, 1}, {130, 126, 15, 8, 1, 1}, {130, 128, 16, 13, 0, 1},
      {128, 128, 8, 8, 1, 33},  {128, 128, 11, 11, 1, 1}};
  std::uint32_t seed = 50;
  int bf16_count = 0;
  for (const auto& [in, out, height, width, padding, images] : shapes) {
    const ConvolutionShape shape{
        {in, height, width},
        {out, out_size(height, 3, 1, padding), out_size(width, 3, 1, padding)},
        {3, 3},
        {1, 1},
        {padding, padding}};
    CHECK((uses_winograd<float>(shape) || uses_winograd<Bf16Bits>(shape)));
    bf16_count += static_cast<int>(uses_winograd<Bf16Bits>(shape));
    for (const bool integers : {true, false}) check(shape, images, ++seed, integers);
  }
  CHECK(bf16_count == (is_supported<Bf16Bits>() && !uses_amx<Bf16Bits>() ? 5 : 0));
}

/// Linear layers, whose weights are read in place if possible, and convolutions with one output row
/// or, in some cases, with more packed weights than inputs.
TEST_CASE("convolutions that multiply by panels of weights match sums in fp64") {
  const std::vector<std::pair<std::int64_t, std::int64_t>> sizes{
      {64, 32}, {64, 10}, {72, 48}, {90, 70}, {33, 17}, {2, 3}, {100, 40}};
  std::uint32_t seed = 20;
  for (const auto& [in, out] : sizes) {
    const ConvolutionShape linear{{in, 1, 1}, {out, 1, 1}, {1, 1}};
    const ConvolutionShape flattened{{in, 3, 2}, {out, 1, 1}, {3, 2}};
    const ConvolutionShape deep{{in, 3, 3}, {out, 3, 3}, {3, 3}, {1, 1}, {1, 1}};
    for (const ConvolutionShape& shape : {linear, flattened, deep}) {
      ++seed;
      check(shape, 65, seed, /*integers=*/seed % 2 == 0);
    }
  }
}

/// Tiles of one, two and three vectors of columns; three only if 3 divides an odd vector count.
TEST_CASE("weight gradients match sums in fp64 for any number of outputs and vectors") {
  for (const std::int64_t vectors : {1, 2, 3, 5}) {
    for (std::int64_t outputs = 1; outputs <= 17; ++outputs) {
      const ConvolutionShape shape{{16, 2, 6}, {outputs, 2, 7 - vectors}, {1, vectors}};
      const auto seed = static_cast<std::uint32_t>(200 + 20 * vectors + outputs);
      check(shape, 33, seed, /*integers=*/outputs % 2 == 0);
    }
  }
}

}  // namespace
}  // namespace mnist_train::cpu_kernels
