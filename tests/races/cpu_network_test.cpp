// Networks of cpu_kernels/ on several threads without LibTorch, whose functions that parallel_for
// calls are defined here: an executable of its own.

#include <cmath>
#include <cstdint>
#include <functional>
#include <thread>
#include <utility>
#include <variant>
#include <vector>

#include "base/system.h"
#include "cpu_kernels/blocked.h"
#include "cpu_kernels/kernels.h"
#include "cpu_kernels/network.h"
#include "support/catch.h"

namespace {
int threads = 1;
}  // namespace
namespace at {
int get_num_threads() { return threads; }
}  // namespace at
extern "C" void omp_set_num_threads(int /*threads*/) {}
extern "C" int omp_in_parallel() { return 0; }

namespace mnist_train {

std::thread start_thread(std::function<void()> work) { return std::thread(std::move(work)); }

namespace cpu_kernels {
namespace {

ConvolutionNode convolution(const ImageShape& in, std::int64_t out, std::int64_t kernel,
                            std::int64_t padding, bool bias) {
  const std::int64_t height = in.height + 2 * padding - kernel + 1;
  const std::int64_t width = in.width + 2 * padding - kernel + 1;
  return {{in, {out, height, width}, {kernel, kernel}, {1, 1}, {padding, padding}, {1, 1}, 1},
          bias};
}

/// Convolutions by rows and by panels, with batch norm, and linear layers.
Graph graph() {
  Graph graph({3, 14, 14});
  Value x = Graph::input();
  for (const std::int64_t channels : {20, 33}) {
    x = graph.add(convolution(graph.shape_of(x), channels, 3, 1, false), x);
    x = graph.add_relu(graph.add(BatchNormNode{1e-5, 0.1}, x));
  }
  x = graph.add(MaxPoolNode{{{33, 14, 14}, {33, 7, 7}, {2, 2}, {2, 2}}}, x);
  x = graph.add_relu(graph.add(convolution({33, 7, 7}, 130, 5, 0, false), x));
  x = graph.add(BatchNormNode{1e-5, 0.1}, x);
  x = graph.add_relu(graph.add(convolution({130, 3, 3}, 100, 3, 0, true), x));
  graph.add(convolution({100, 1, 1}, 10, 1, 0, true), x);
  return graph;
}

/// Returns the output and all gradients of one step.
template <class Element>
std::vector<double> results(std::int64_t images) {
  const Graph layers = graph();
  Network<Element> network(layers, images);
  Draws<Element> draws(1);
  const std::size_t nodes = layers.nodes().size();
  std::vector<std::vector<Element>> weights(nodes), biases(nodes), of_weights(nodes),
      of_biases(nodes);
  std::vector<std::vector<float>> norms(nodes);
  for (std::size_t i = 0; i < nodes; ++i) {
    const Node& node = layers.nodes()[i];
    if (const auto* layer = std::get_if<ConvolutionNode>(&node.kind)) {
      const ConvolutionShape& s = layer->shape;
      of_weights[i].resize(static_cast<std::size_t>(s.out.channels * s.in.channels *
                                                    s.kernel.height * s.kernel.width));
      of_biases[i].resize(static_cast<std::size_t>(s.out.channels));
      weights[i] = draws.numbers(static_cast<std::int64_t>(of_weights[i].size()));
      biases[i] = draws.numbers(s.out.channels);
      network.set(i, ConvolutionTensors<Element>{
                         weights[i].data(), layer->has_bias ? biases[i].data() : nullptr,
                         WeightStrides::contiguous(s), of_weights[i].data(), of_biases[i].data()});
    } else if (std::holds_alternative<BatchNormNode>(node.kind)) {
      const auto channels = static_cast<std::size_t>(layers.shape_of(node.in).channels);
      norms[i].assign(6 * channels, 1);
      float* const all = norms[i].data();
      network.set(
          i, TrainedBatchNormTensors{{all, all + channels, all + 2 * channels, all + 3 * channels},
                                     all + 4 * channels,
                                     all + 5 * channels});
    }
  }
  const auto pixels = static_cast<std::size_t>(images) * 3 * 14 * 14;
  std::vector<float> x(pixels);
  for (std::size_t i = 0; i < pixels; ++i) x[i] = std::sin(static_cast<float>(i));
  const Element* const y =
      network.forward(x.data(), {3 * 14 * 14, 14 * 14, 14, 1}, Batch{images}, true);
  const ImageShape out{10, 1, 1};
  const std::vector<Element> dy = to_blocks(out, images, draws.numbers(images * 10));
  std::vector<double> all =
      values_of(std::vector<Element>(y, y + dy.size() - kSlackBytes / sizeof(Element)));
  network.backward(dy.data());
  for (std::size_t i = 0; i < nodes; ++i) {
    for (const auto* gradients : {&of_weights[i], &of_biases[i]}) {
      const std::vector<double> values = values_of(*gradients);
      all.insert(all.end(), values.begin(), values.end());
    }
    all.insert(all.end(), norms[i].begin(), norms[i].end());
  }
  return all;
}

template <class Element>
void check_threads() {
  if (!is_supported<Element>()) return;
  for (const std::int64_t images : {20, 64, 140}) {
    threads = 1;
    const std::vector<double> expected = results<Element>(images);
    for (const int count : {2, 3, 8}) {
      threads = count;
      INFO(images << " images, " << count << " threads");
      CHECK(results<Element>(images) == expected);
    }
  }
}

TEST_CASE("Results of networks do not depend on the number of threads, in fp32") {
  check_threads<float>();
}
TEST_CASE("Results of networks do not depend on the number of threads, in bf16") {
  check_threads<Bf16Bits>();
}

}  // namespace
}  // namespace cpu_kernels
}  // namespace mnist_train
