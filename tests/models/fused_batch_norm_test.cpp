#include <ATen/ops/randn.h>
#include <torch/csrc/autograd/function.h>

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "kernels/emulated_kernels.h"
#include "models/model.h"
#include "support/catch.h"

namespace mnist_train::models {
namespace {

using settings::Activation;

constexpr auto kChannelsLast = at::MemoryFormat::ChannelsLast;
constexpr std::int64_t kBatchNorms = 6;

settings::Layer conv2d(std::int64_t channels) {
  settings::Conv2dLayer layer;
  layer.out_channels = channels;
  layer.kernel_size = {3, 3};
  layer.padding = settings::ImageSize{1, 1};
  layer.bias = false;  // its gradient would be a rounding error
  return {"", layer};
}

/// Batch norm in front of a ReLU and of others, and at the ends of residual blocks.
settings::ModelOptions with_batch_norms(std::optional<Activation> behind_sums) {
  const settings::Layer norm{"", settings::BatchNormLayer{}};
  const settings::Layer relu{"", settings::ActivationLayer{}};
  settings::ResidualLayer block;
  block.layers = {conv2d(8), norm, relu, conv2d(8), {"", settings::SequentialLayer{{norm}}}};
  block.activation = behind_sums;
  settings::ResidualLayer with_shortcut;
  with_shortcut.layers = {conv2d(12), norm};
  with_shortcut.shortcut = {conv2d(12), norm};
  with_shortcut.activation = behind_sums;
  settings::LinearLayer last;
  last.out_features = 10;
  settings::ModelOptions options;
  options.layers = {conv2d(8),
                    norm,
                    relu,
                    {"", block},
                    {"", with_shortcut},
                    norm,
                    relu,
                    {"", settings::MaxPool2dLayer{}},
                    {"", settings::FlattenLayer{}},
                    {"", last}};
  return options;
}

/// What a step of training makes of a network: scores, then all gradients and buffers.
std::vector<at::Tensor> train_once(const settings::ModelOptions& options, at::ScalarType type,
                                   at::Tensor& scores) {
  const auto model = make_model(options, {3, 12, 12, 10}, /*seed=*/3);
  for (at::Tensor& parameter : model->parameters()) {
    if (parameter.dim() == 4) parameter.set_data(parameter.contiguous(kChannelsLast));
  }
  if (type == at::kBFloat16) model->compute_in_bfloat16();
  torch::manual_seed(5);
  const at::Tensor images = at::randn({16, 3, 12, 12}).to(type);
  const at::Tensor slope = at::randn({16, 10});
  scores = model->forward(images.contiguous(kChannelsLast));
  (scores * slope).sum().backward();
  std::vector<at::Tensor> outcome{scores.detach()};
  for (const at::Tensor& parameter : model->parameters()) outcome.push_back(parameter.grad());
  for (const at::Tensor& buffer : model->buffers()) outcome.push_back(buffer);
  return outcome;
}

/// Counts the operations with such a name from which a tensor was computed.
std::int64_t count_operations(const at::Tensor& computed, const std::string& name) {
  std::set<const torch::autograd::Node*> seen;
  std::vector<const torch::autograd::Node*> left{computed.grad_fn().get()};
  std::int64_t count = 0;
  while (!left.empty()) {
    const auto* const node = left.back();
    left.pop_back();
    if (node == nullptr || !seen.insert(node).second) continue;
    if (node->name().find(name) != std::string::npos) ++count;
    for (const auto& edge : node->next_edges()) left.push_back(edge.function.get());
  }
  return count;
}

}  // namespace

TEST_CASE("networks with batch norm, ReLU and residual blocks train by kernels as without") {
  using Tail = std::optional<Activation>;
  const Tail behind_sums = GENERATE(Tail(Activation::kRelu), Tail(), Tail(Activation::kTanh));
  const at::ScalarType type = GENERATE(at::kFloat, at::kBFloat16);
  const settings::ModelOptions options = with_batch_norms(behind_sums);
  at::Tensor scores;
  const std::vector<at::Tensor> expected = train_once(options, type, scores);
  CHECK(count_operations(scores, "FusedBatchNorm") == 0);
  std::vector<at::Tensor> found;
  {
    const EmulatedKernels emulated;
    found = train_once(options, type, scores);
  }
  CHECK(count_operations(scores, "FusedBatchNorm") == kBatchNorms);
  CHECK(count_operations(scores, "ReluBackward") == 0);
  CHECK(count_operations(scores, "AddBackward") == (behind_sums == Activation::kTanh ? 2 : 0));
  REQUIRE(found.size() == expected.size());
  for (std::size_t i = 0; i < found.size(); ++i) {
    const at::Tensor wanted = expected[i].to(at::kDouble);
    const double off = (found[i].to(at::kDouble) - wanted).norm().item<double>();
    CAPTURE(i, behind_sums.has_value(), type);
    // What a batch norm takes away again has a gradient that is a rounding error.
    CHECK(off <= (type == at::kFloat ? 1e-4 : 0.3) * (wanted.norm().item<double>() + 0.1));
  }
}

}  // namespace mnist_train::models
