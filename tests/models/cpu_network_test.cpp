#include <ATen/Parallel.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/full_like.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>
#include <torch/types.h>
#include <torch/utils.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "base/cpu.h"
#include "data/sampler.h"
#include "models/model.h"
#include "support/catch.h"
#include "support/count_operations.h"
#include "support/layers.h"
#include "support/ranks.h"

namespace mnist_train::models {
namespace {

using settings::Activation;
using settings::ImageSize;
using settings::Layer;
using settings::LayerList;
using namespace testing::layer;

constexpr Activation kFunctions[] = {Activation::kTanh, Activation::kRelu, Activation::kSigmoid,
                                     Activation::kGelu, Activation::kSilu, Activation::kLeakyRelu,
                                     Activation::kRelu6};

/// A network without batch norm, in which integers stay integers.
LayerList pooled() {
  return {convolution(6, 3, 1),
          relu(),
          max_pool(),
          convolution(9, 3, 0, 2),
          relu(),
          convolution(9, 2, 0, 1, false),
          flatten(),
          linear(7),
          relu(),
          linear(5)};
}

/// A residual block whose second convolution uses Winograd's algorithm in fp32.
LayerList residual(bool norm = true) {
  settings::ResidualLayer block;
  block.layers = {convolution(32, 3, 1, 2, !norm), relu(), convolution(32, 3, 1, 1, !norm)};
  block.shortcut = {convolution(32, 1, 0, 2)};
  block.activation = Activation::kRelu;
  if (norm) {
    block.layers.insert(block.layers.begin() + 1, batch_norm());
    block.layers.push_back(batch_norm());
  }
  LayerList list{convolution(6, 3, 1, 1, false), relu(), {"", block}};
  if (norm) list.insert(list.begin() + 1, batch_norm());
  list.insert(list.end(), {average_pool(), flatten(), linear(5)});
  return list;
}

/// A residual sum without batch norm, and flattened images of more than one pixel.
LayerList flattened() {
  settings::ResidualLayer block;
  block.layers = {convolution(10, 3, 1), relu()};
  block.activation = Activation::kRelu;
  return {convolution(10, 3, 1),
          relu(),
          max_pool(),
          {"", block},
          flatten(),
          linear(70),
          relu(),
          linear(5)};
}

/// A network with a depthwise convolution and activations that are not fused with preceding layers.
LayerList depthwise() {
  return {convolution(9, 3, 1, 1, false),
          batch_norm(),
          function(Activation::kSilu),
          convolution(9, 3, 1, 2, true, 9),
          function(Activation::kTanh),
          average_pool(),
          flatten(),
          linear(5)};
}

/// Convolutions with asymmetric padding.
LayerList padded() {
  return {{"", settings::ZeroPad2dLayer{{0, 1, 0, 2}}},
          convolution(8, 3, 0, 2),
          relu(),
          {"", settings::ZeroPad2dLayer{{1, 0, 2, 0}}},
          convolution(6, 2),
          function(Activation::kTanh),
          {"", settings::ZeroPad2dLayer{{2, 1, 0, 1}}},
          convolution(6, 3, 0, 1, true, 6),
          function(Activation::kTanh),
          average_pool(),
          flatten(),
          linear(5)};
}

/// Every kind of pooling. Max pooling comes first, because rounding may change maxima of sums.
LayerList pools() {
  return {{"", settings::MaxPool2dLayer{{3, 3}, ImageSize{2, 1}, {1, 0}}},
          convolution(9, 1),
          {"", settings::AvgPool2dLayer{{3, 2}, ImageSize{1, 2}, {0, 0}, /*ceil_mode=*/true}},
          convolution(20, 1),
          average_pool(),
          flatten(),
          linear(5)};
}

/// An activation after a batch norm, and after a convolution.
LayerList activated(const settings::ActivationLayer& activation) {
  return {convolution(12, 1, 0, 1, false),
          batch_norm(),
          {"", activation},
          convolution(12, 3, 1),
          {"", activation},
          average_pool(),
          flatten(),
          linear(5)};
}

std::shared_ptr<Model> build_model(const LayerList& layers, at::ScalarType type,
                                   const network::ImageShape& shape = {3, 12, 11, 5}) {
  settings::ModelOptions options;
  options.layers = layers;
  auto model = make_model(options, shape, /*seed=*/3);
  type == at::kBFloat16 ? model->compute_in_bfloat16() : model->to(type);
  return model;
}

/// Returns an fp64 network that LibTorch computes, with the parameters of `rounded`.
std::shared_ptr<Model> exact_copy(const LayerList& layers, const Model& rounded) {
  auto exact = build_model(layers, at::kDouble);
  for (std::size_t i = 0; i < exact->parameters().size(); ++i) {
    exact->parameters()[i].set_data(rounded.parameters()[i].detach().to(at::kDouble));
  }
  return exact;
}

/// Randomises batch norm parameters, which are initially ones and zeros, and all other biases.
void randomize_batch_norms(Model& model) {
  const at::NoGradGuard no_grad;
  for (const auto& item : model.named_parameters()) {
    at::Tensor value = item.value();
    if (value.dim() != 1) continue;
    item.key().ends_with("weight") ? value.uniform_(0.5, 1.5) : value.uniform_(-0.5, 0.5);
  }
}

bool uses_engine(const at::Tensor& out) { return count_operations(out, "Stage") > 0; }

bool can_compute(at::ScalarType type) {
  return type == at::kFloat ? cpu_features().avx512 : cpu_features().avx512_bf16;
}

/// The outputs, all gradients, and the buffers of a step.
using NamedTensors = std::vector<std::pair<std::string, at::Tensor>>;

NamedTensors take_step(Model& model, const at::Tensor& images, const at::Tensor& upstream,
                       bool needs_dx = true) {
  model.zero_grad();
  const at::Tensor leaf = images.detach().clone().requires_grad_(needs_dx);
  const at::Tensor out = model.forward(leaf);
  out.backward(upstream.to(out.scalar_type()));
  NamedTensors outcome{{"output", out.detach()}};
  if (needs_dx) outcome.emplace_back("input", leaf.grad());
  for (const auto& item : model.named_parameters()) {
    if (item.value().requires_grad()) outcome.emplace_back(item.key(), item.value().grad().clone());
  }
  for (const auto& item : model.named_buffers()) {
    outcome.emplace_back(item.key(), item.value().clone());
  }
  return outcome;
}

/// Returns the error relative to the larger of the norms of `exact` and of a tensor of 0.1s.
double error_of_tensor(const at::Tensor& found, const at::Tensor& exact) {
  const double min_norm = 0.1 * std::sqrt(static_cast<double>(exact.numel()));
  const double error = (found.to(at::kDouble) - exact.to(at::kDouble)).norm().item<double>();
  return error / std::max(exact.to(at::kDouble).norm().item<double>(), min_norm);
}

void check_close(const NamedTensors& found, const NamedTensors& exact, double error) {
  REQUIRE(found.size() == exact.size());
  for (std::size_t i = 0; i < found.size(); ++i) {
    INFO(found[i].first);
    CHECK(error_of_tensor(found[i].second, exact[i].second) <= error);
  }
}

void check_equal(const NamedTensors& found, const NamedTensors& expected) {
  REQUIRE(found.size() == expected.size());
  for (std::size_t i = 0; i < found.size(); ++i) {
    INFO(found[i].first);
    CHECK(found[i].second.to(at::kDouble).equal(expected[i].second.to(at::kDouble)));
  }
}

at::Tensor integers(at::IntArrayRef sizes) { return at::randint(-2, 3, sizes, at::kFloat); }

TEST_CASE("networks compute sums of integers exactly") {
  torch::manual_seed(1);
  for (const LayerList& layers : {pooled(), residual(/*norm=*/false)}) {
    for (const std::int64_t images : {1, 37}) {
      const auto exact = build_model(layers, at::kDouble);
      const auto model = build_model(layers, at::kFloat);
      const at::NoGradGuard no_grad;
      for (std::size_t i = 0; i < exact->parameters().size(); ++i) {
        const at::Tensor weights = at::randint(-1, 2, exact->parameters()[i].sizes(), at::kDouble);
        exact->parameters()[i].copy_(weights);
        model->parameters()[i].copy_(weights);
      }
      const at::AutoGradMode grad(true);
      const at::Tensor x = integers({images, 3, 12, 11});
      const at::Tensor upstream = integers({images, 5});
      CHECK(uses_engine(model->forward(x)) == can_compute(at::kFloat));
      // Average pooling rounds.
      check_close(take_step(*model, x, upstream), take_step(*exact, x.to(at::kDouble), upstream),
                  layers.size() == pooled().size() ? 0 : 5e-6);
    }
  }
}

/// Draws random lists of layers, some of which do not fit images of 3 x 12 x 11.
class RandomLists {
 public:
  LayerList draw() {
    LayerList list{
        convolution(channels(), 1 + 2 * below(3), below(3), 1 + below(2), below(2) == 0)};
    if (below(5) == 0) list.insert(list.begin(), residual());
    for (std::int64_t i = 2 + below(5); i > 0; --i) list.push_back(layer());
    if (below(2) != 0) list.push_back(average_pool());
    list.push_back(flatten());
    if (below(2) == 0) list.insert(list.end(), {linear(1 + below(40)), relu()});
    list.push_back(linear(5));
    return list;
  }

 private:
  std::int64_t below(std::int64_t end) {
    return static_cast<std::int64_t>(engine_() % static_cast<std::uint64_t>(end));
  }
  std::int64_t channels() { return 1 + below(24); }
  Layer layer() {
    switch (below(10)) {
      case 0:
        return convolution(channels(), 1 + below(3), below(2), 1 + below(2), below(2) == 0);
      case 1:
        return batch_norm();
      case 2:
        return max_pool();
      case 3:
        return {"", settings::AvgPool2dLayer{{2, 2}, ImageSize{1 + below(2), 1}}};
      case 4:
        return {"", settings::MaxPool2dLayer{{3, 2}, ImageSize{1 + below(2), 1}, {1, below(2)}}};
      case 5:
        return residual();
      case 6: {  // padding that may differ between sides
        settings::SequentialLayer padded;
        padded.layers = {{"", settings::ZeroPad2dLayer{{below(2), below(3), below(2), below(3)}}},
                         convolution(channels(), 2 + below(2))};
        return {"", padded};
      }
      case 7: {  // a depthwise convolution after a layer with a known number of channels
        settings::SequentialLayer depthwise;
        const std::int64_t groups = 1 + below(9);
        depthwise.layers = {convolution(groups, 1),
                            convolution(groups, 3, 1, 1 + below(2), true, groups)};
        return {"", depthwise};
      }
      default:
        return function(random_function());
    }
  }
  Layer residual() {
    settings::ResidualLayer block;
    block.layers = {batch_norm()};
    if (below(3) > 0) block.layers.push_back(function(random_function()));
    if (below(2) == 0) block.shortcut = {batch_norm()};
    if (below(2) == 0) block.activation = random_function();
    if (below(3) == 0) block.layers = {{"", block}};
    return {"", block};
  }
  Activation random_function() { return kFunctions[below(std::size(kFunctions))]; }

  std::mt19937 engine_{8};
};

TEST_CASE("random lists of layers match LibTorch in fp64, forward and backward") {
  torch::manual_seed(2);
  RandomLists lists;
  for (int found = 0; found < 50;) {
    const LayerList layers = lists.draw();
    std::shared_ptr<Model> model;
    try {
      model = build_model(layers, at::kFloat);
    } catch (const network::LayerError&) {
      continue;
    }
    ++found;
    INFO(settings::write_layers(layers));
    const at::Tensor x = at::randn({37, 3, 12, 11});
    const at::Tensor upstream = at::randn({37, 5});
    CHECK(uses_engine(model->forward(x)) == can_compute(at::kFloat));
    model = build_model(layers, at::kFloat);
    const auto exact = build_model(layers, at::kDouble);
    // Terms of some batch norm gradients nearly cancel; LibTorch's gradients are less accurate.
    check_close(take_step(*model, x, upstream), take_step(*exact, x.to(at::kDouble), upstream),
                can_compute(at::kFloat) ? 2e-4 : 1e-2);
    model->eval();
    exact->eval();
    check_close(take_step(*model, x, upstream), take_step(*exact, x.to(at::kDouble), upstream),
                can_compute(at::kFloat) ? 1e-5 : 1e-4);
  }
}

/// The bf16 tolerance is large: terms of batch norm gradients cancel, but rounding errors do not.
TEST_CASE("networks with every fused layer match LibTorch, with and without gradients") {
  const at::ScalarType type = GENERATE(at::kFloat, at::kBFloat16);
  if (!can_compute(type)) return;
  std::vector<LayerList> lists{pooled(), flattened(), residual(), depthwise(), padded(), pools()};
  for (const Activation function : kFunctions) {
    lists.push_back(activated({function, /*negative_slope=*/0.25}));
  }
  for (const LayerList& layers : lists) {
    INFO(settings::write_layers(layers));
    torch::manual_seed(3);
    const auto model = build_model(layers, type);
    randomize_batch_norms(*model);
    const std::int64_t images = type == at::kFloat ? 64 : 37;
    const at::Tensor x = at::randn({images, 3, 12, 11}).to(type);
    // Large enough that all gradients exceed the floor of `error_of_tensor`.
    const at::Tensor upstream = (1e4 * at::randn({images, 5})).to(type);
    const NamedTensors found = take_step(*model, x, upstream);
    check_close(found, take_step(*exact_copy(layers, *model), x.to(at::kDouble), upstream),
                type == at::kFloat ? 1e-5 : 0.2);
    const auto weights =
        std::ranges::count_if(model->named_parameters().keys(),
                              [](const std::string& name) { return name.ends_with("weight"); });
    CHECK(count_operations(model->forward(x), "Stage") == weights);  // LibTorch computes no layer
    const at::NoGradGuard no_grad;  // without gradients, values share memory
    CHECK(model->forward(x).equal(found.front().second));
    CHECK(model->forward(x.contiguous(at::MemoryFormat::ChannelsLast)).equal(found.front().second));
  }
}

TEST_CASE("batch norms that share an input match LibTorch, with and without its gradient") {
  torch::manual_seed(10);
  settings::ResidualLayer twin;
  twin.layers = {batch_norm()};
  twin.shortcut = {batch_norm()};
  settings::ResidualLayer nested;
  nested.layers = {{"", twin}};
  nested.shortcut = {convolution(3, 3, 1)};
  settings::ResidualLayer alone;  // adds its input
  alone.layers = {batch_norm()};
  const LayerList layers{{"", nested}, {"", twin},     {"", alone}, convolution(6, 3),
                         {"", alone},  average_pool(), flatten(),   linear(5)};
  const auto model = build_model(layers, at::kFloat);
  randomize_batch_norms(*model);
  const at::Tensor x = at::randn({37, 3, 12, 11});
  const at::Tensor upstream = at::randn({37, 5});
  for (const bool needs_dx : {false, true}) {
    const auto exact = exact_copy(layers, *model);
    if (needs_dx) take_step(*exact, x.to(at::kDouble), upstream, needs_dx);  // like `model`
    check_close(take_step(*model, x, upstream, needs_dx),
                take_step(*exact, x.to(at::kDouble), upstream, needs_dx), 1e-4);
  }
}

TEST_CASE("results do not depend on the number of threads or on the batch's other images") {
  torch::manual_seed(4);
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
    if (!can_compute(type)) continue;
    const at::Tensor x = at::randn({100, 3, 12, 11}).to(type);
    const at::Tensor upstream = at::randn({100, 5}).to(type);
    const int before = at::get_num_threads();
    std::vector<NamedTensors> outcomes;
    for (const int threads : {1, 3}) {
      at::set_num_threads(threads);
      const auto model = build_model(residual(), type);
      outcomes.push_back(take_step(*model, x, upstream));
    }
    at::set_num_threads(before);
    check_equal(outcomes[0], outcomes[1]);
    const at::NoGradGuard no_grad;
    const auto model = build_model(residual(), type);
    model->eval();
    CHECK(model->forward(x).narrow(0, 40, 20).equal(model->forward(x.narrow(0, 40, 20))));
  }
}

TEST_CASE("frozen layers have no gradients, and the other gradients do not change") {
  struct Case {
    LayerList layers;
    std::vector<std::string> trained;  // prefixes; other parameters are frozen
    bool trains_norms = false;
  };
  const std::vector<Case> cases{{residual(), {"3.layers.3.", "6."}},
                                {depthwise(), {"0.", "3.", "7."}},
                                {depthwise(), {"0.", "1.", "3.", "7."}, /*trains_norms=*/true},
                                {depthwise(), {"7."}}};
  const at::ScalarType type = GENERATE(at::kFloat, at::kBFloat16);
  if (!can_compute(type)) return;
  const bool needs_dx = GENERATE(false, true);
  torch::manual_seed(5);
  const at::Tensor x = at::randn({20, 3, 12, 11}).to(type);
  const at::Tensor upstream = (1e4 * at::randn({20, 5})).to(type);
  for (const Case& test : cases) {
    const auto full = build_model(test.layers, type);
    full->train(test.trains_norms);  // frozen batch norms use running statistics
    const NamedTensors expected = take_step(*full, x, upstream);
    const auto model = build_model(test.layers, type);
    const auto named = model->named_parameters();
    for (const auto& item : named) {
      item.value().set_requires_grad(std::ranges::any_of(
          test.trained, [&](const std::string& name) { return item.key().starts_with(name); }));
    }
    model->train();
    std::size_t compared = 0;
    for (const auto& [name, tensor] : take_step(*model, x, upstream, needs_dx)) {
      for (const auto& [other, value] : expected) {
        INFO(name);
        if (name != other) continue;
        if (name == "output") CHECK(tensor.equal(value));
        CHECK(error_of_tensor(tensor, value) <= (type == at::kFloat ? 1e-6 : 0.02));
        ++compared;
      }
    }
    CHECK(compared > test.trained.size() + model->named_buffers().size());
    for (const auto& item : named) item.value().set_requires_grad(false);
    CHECK_FALSE(model->forward(x).requires_grad());
  }
}

TEST_CASE("the first gradients go to their destination buffers, and later ones are added") {
  torch::manual_seed(6);
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
    if (!can_compute(type)) return;
    const at::Tensor x = at::randn({20, 3, 12, 11}).to(type);
    const at::Tensor upstream = at::randn({20, 5}).to(type);
    const auto model = build_model(pooled(), type);
    const NamedTensors expected = take_step(*model, x, upstream);
    model->zero_grad();
    std::vector<at::Tensor> destinations;
    for (const at::Tensor& parameter : model->parameters()) {
      destinations.push_back(at::full_like(parameter, 7).detach());
      model->gradient_destinations().set(parameter, destinations.back());
    }
    model->forward(x).backward(upstream);
    for (std::size_t i = 0; i < destinations.size(); ++i) {
      CHECK(model->parameters()[i].grad().const_data_ptr() == destinations[i].const_data_ptr());
      CHECK(destinations[i].equal(expected[i + 2].second));
    }
    model->forward(x).backward(upstream);  // adds to the gradients
    CHECK(model->parameters()[0]
              .grad()
              .to(at::kFloat)
              .allclose(2 * expected[2].second.to(at::kFloat), 1e-2));
  }
}

TEST_CASE("without destination buffers, gradients reach autograd layer by layer") {
  if (!can_compute(at::kFloat)) return;
  const auto model = build_model(pooled(), at::kFloat);
  const at::Tensor out = model->forward(at::randn({20, 3, 12, 11}));
  CHECK(count_operations(out, "Stage") == 5);  // one per layer with weights
  const at::Tensor first = model->parameters().front();
  const at::Tensor last = model->parameters().back();
  std::vector<bool> other_is_ready;
  last.register_hook([&](const at::Tensor&) { other_is_ready.push_back(first.grad().defined()); });
  first.register_hook([&](const at::Tensor&) { other_is_ready.push_back(last.grad().defined()); });
  out.sum().backward();
  CHECK(other_is_ready == std::vector{false, true});
}

TEST_CASE("an empty batch has gradients of zero") {
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
    const auto model = build_model(pooled(), type);
    const at::Tensor out = model->forward(at::zeros({0, 3, 12, 11}, type));
    CHECK(out.sizes() == at::IntArrayRef({0, 5}));
    out.sum().backward();
    for (const at::Tensor& parameter : model->parameters()) {
      CHECK(parameter.grad().abs().sum().item<float>() == 0);
    }
  }
}

TEST_CASE("a NaN in an image affects only the output for that image") {
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
    const auto model = build_model(pooled(), type);
    at::Tensor x = at::randn({3, 3, 12, 11}).to(type);
    x[1][2][5][5] = std::numeric_limits<float>::quiet_NaN();
    const at::Tensor out = model->forward(x);
    CHECK(out[1].isnan().all().item<bool>());
    CHECK(out.isnan().sum().item<std::int64_t>() == 5);
  }
}

TEST_CASE("dropout in a network drops the same elements as LibTorch, and none in evaluation") {
  const at::ScalarType type = GENERATE(at::kFloat, at::kBFloat16);
  const double p = GENERATE(0.3, 0.1, 0.0, 1 - 1e-12);  // the last one's threshold is 2^32
  CAPTURE(type, p);
  torch::manual_seed(8);
  settings::ResidualLayer block;
  block.layers = {convolution(7, 3, 1), {"", settings::DropoutLayer{p}}};
  block.shortcut = {{"", settings::DropoutLayer{0.25}}};
  const LayerList layers{
      convolution(7, 3), {"", block}, flatten(), linear(21), {"", settings::DropoutLayer{0.5}},
      linear(5)};
  const at::Tensor x = at::randn({40, 3, 12, 11}).to(type);
  const at::Tensor upstream = at::randn({40, 5}).to(type);
  const at::Tensor seeds = at::arange(40, at::kLong) * 0x1234567890abcdef;
  const auto model = build_model(layers, type);
  const auto exact = exact_copy(layers, *model);
  for (Model* each : {model.get(), exact.get()}) each->set_sample_seeds(seeds);
  CHECK(count_operations(model->forward(x), "Stage") == (can_compute(type) ? 4 : 0));
  for (const bool training : {true, false}) {
    model->train(training);
    exact->train(training);
    check_close(take_step(*model, x, upstream), take_step(*exact, x.to(at::kDouble), upstream),
                type == at::kFloat ? 1e-6 : 0.05);
  }
}

TEST_CASE("synchronised batch norm uses the global batch, even with uneven shares") {
  torch::manual_seed(9);
  const bool uses_libtorch = GENERATE(false, true);  // which computes lists with few weights
  const LayerList layers =
      uses_libtorch ? LayerList{batch_norm(), flatten(), linear(5)} : residual();
  for (const std::int64_t count : {40, 2}) {  // with 2 samples, rank 2 has none
    constexpr int kRanks = 3;
    const at::Tensor x = at::randn({count, 3, 12, 11}) * 2 + at::randn({1, 3, 1, 1});
    const at::Tensor upstream = at::randn({count, 5});
    const auto exact = build_model(layers, at::kDouble);
    const NamedTensors expected = take_step(*exact, x.to(at::kDouble), upstream);
    std::vector<NamedTensors> outcomes(kRanks);
    std::vector<std::shared_ptr<Model>> models;
    for (int rank = 0; rank < kRanks; ++rank) models.push_back(build_model(layers, at::kFloat));
    testing::on_connected_ranks(kRanks, [&](comm::Communicator& communicator) {
      const auto rank = static_cast<std::size_t>(communicator.rank());
      const data::Range range = data::shard({0, count}, communicator.rank(), kRanks);
      models[rank]->synchronize_batch_norm(
          [&](at::Tensor& sums) { communicator.all_reduce_sum(sums); });
      outcomes[rank] = take_step(*models[rank], x.narrow(0, range.begin, range.size()),
                                 upstream.narrow(0, range.begin, range.size()));
    });
    for (std::size_t i = 0; i < expected.size(); ++i) {
      INFO(expected[i].first);
      at::Tensor found = outcomes[0][i].second;
      const bool is_buffer = i >= 2 + exact->parameters().size();
      for (std::size_t rank = 1; rank < kRanks; ++rank) {
        const at::Tensor& rank_result = outcomes[rank][i].second;
        if (is_buffer) {
          CHECK(error_of_tensor(rank_result, expected[i].second) < 1e-4);
        } else {
          found = i < 2 ? at::cat({found, rank_result}) : found + rank_result;
        }
      }
      CHECK(error_of_tensor(found, expected[i].second) < 1e-4);
    }
  }
}

TEST_CASE("LibTorch computes layers, types and shapes that the CPU kernels do not support") {
  torch::manual_seed(10);
  LayerList group_norm_layers = pooled();
  group_norm_layers.insert(group_norm_layers.begin() + 1, {"", settings::GroupNormLayer{2}});
  const at::Tensor x = at::randn({4, 3, 12, 11});
  const at::Tensor out = build_model(group_norm_layers, at::kFloat)->forward(x);
  CHECK(count_operations(out, "GroupNorm") == 1);
  CHECK(uses_engine(out) == can_compute(at::kFloat));  // because of the layers after it
  settings::Conv2dLayer dilated;
  dilated.out_channels = 5;
  dilated.dilation = {2, 2};
  for (const Layer& other :
       {convolution(12, 3, 1, 1, true, 6), convolution(6, 3, 1, 1, true, 2), Layer{"", dilated},
        Layer{"", settings::GateLayer{{function(Activation::kSigmoid)}}},
        Layer{"", settings::ActivationLayer{Activation::kGelu, 0, /*tanh_approximates=*/true}},
        function(Activation::kHardswish), function(Activation::kHardsigmoid)}) {
    const LayerList list{convolution(6, 1), other, flatten(), linear(5)};
    CHECK_FALSE(uses_engine(build_model(list, at::kFloat)->forward(x)));
  }
  CHECK_FALSE(uses_engine(build_model(pooled(), at::kDouble)->forward(x.to(at::kDouble))));
  CHECK_THROWS_AS(build_model(pooled(), at::kFloat)->forward(at::randn({4, 2, 12, 11})),
                  c10::Error);
}

TEST_CASE("a backward pass after a second forward pass is refused") {
  if (!can_compute(at::kFloat)) return;
  const auto model = build_model(pooled(), at::kFloat);
  const at::Tensor x = at::randn({4, 3, 12, 11});
  const at::Tensor first = model->forward(x).sum();
  model->forward(x);
  CHECK_THROWS_WITH(first.backward(),
                    Catch::Matchers::ContainsSubstring("another forward pass ran"));
}

}  // namespace
}  // namespace mnist_train::models
