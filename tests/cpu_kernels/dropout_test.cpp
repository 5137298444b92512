#include "cpu_kernels/dropout.h"

#include <cmath>
#include <cstdint>
#include <vector>

#include "cpu_kernels/blocked.h"
#include "cpu_kernels/graph_executor.h"
#include "cpu_kernels/kernels.h"
#include "support/catch.h"

namespace mnist_train::cpu_kernels {
namespace {

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

/// A convolution that copies its only channel, and dropout.
template <class Element>
void check_network() {
  if (!is_supported<Element>()) return;
  const ValueShape shape{1, 6, 5};
  constexpr std::int64_t kSamples = 40;
  constexpr std::int64_t kElements = kSamples * 30;
  Graph graph(shape);
  Value x = graph.add(ConvolutionNode{{shape, shape, {1, 1}}, true}, Graph::input());
  x = graph.add(DropoutNode{2, 0.3}, x);
  CHECK(graph.add(DropoutNode{3, 0}, x) == x);
  GraphExecutor<Element> network(graph, kSamples, Passes::kBackward);
  Element one, zero{}, weight_gradient, bias_gradient;
  round_to(1, one);
  network.set(0,
              {&one, &zero, contiguous({shape, shape, {1, 1}}), &weight_gradient, &bias_gradient});
  const std::vector<Element> images = Draws<Element>(5).numbers(kElements);
  const PlainStrides strides{30, 30, 5, 1};
  const std::vector<std::int64_t> seeds = random_seeds(kSamples);
  network.set_sample_seeds(seeds.data());
  const auto forward = [&](bool training) {
    network.forward(images.data(), strides, {kSamples}, training);
    std::vector<Element> y(images.size());
    network.read_output(y.data(), strides);
    return values_of(y);
  };
  CHECK(forward(false) == values_of(images));
  CHECK(forward(true) == dropped(images, seeds, 30, 2, 0.3));
  const std::vector<Element> dy = Draws<Element>(6).numbers(kElements);
  network.begin_backward(dy.data(), strides);
  network.backward_to(0);
  double sum = 0;
  for (const double g : dropped(dy, seeds, 30, 2, 0.3)) sum += g;
  CHECK(value_of(bias_gradient) == testing::Approx(sum).epsilon(tolerance<Element>()));
}

TEST_CASE("Dropout is the identity in evaluation, and drops gradients in training") {
  check_network<float>();
  check_network<Bf16Bits>();
}

}  // namespace
}  // namespace mnist_train::cpu_kernels
