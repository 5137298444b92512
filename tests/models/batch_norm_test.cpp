#include "models/batch_norm.h"

#include <ATen/ops/allclose.h>
#include <ATen/ops/randn.h>
#include <torch/nn/modules/batchnorm.h>

#include <memory>
#include <vector>

#include "data/sampler.h"
#include "support/catch.h"
#include "support/ranks.h"

namespace mnist_train::models {
namespace {

constexpr std::int64_t kChannels = 3;

/// What a layer made of a batch: outputs, the gradient of the inputs, its parameters' gradients and
/// its statistics.
struct Outcome {
  at::Tensor output;
  at::Tensor input_gradient;
  at::Tensor weight_gradient;
  at::Tensor bias_gradient;
  at::Tensor running_mean;
  at::Tensor running_var;
};

template <class Layer>
Outcome run(Layer& layer, const at::Tensor& images, const at::Tensor& slope) {
  const at::Tensor x = images.clone().set_requires_grad(true);
  const at::Tensor y = layer.forward(x);
  (y * slope).sum().backward();
  const auto parameters = layer.named_parameters();
  const auto buffers = layer.named_buffers();
  return {y.detach(),
          x.grad(),
          parameters["weight"].grad(),
          parameters["bias"].grad(),
          buffers["running_mean"].clone(),
          buffers["running_var"].clone()};
}

void require_close(const at::Tensor& a, const at::Tensor& b) {
  REQUIRE(a.sizes() == b.sizes());
  REQUIRE(at::allclose(a, b, 1e-4, 1e-5));
}

at::Tensor unlike_images(std::int64_t count) {
  return at::randn({count, kChannels, 4, 5}) * 2 + at::randn({1, kChannels, 1, 1});
}

TEST_CASE("a batch norm of one process is PyTorch's, in training and in evaluation") {
  BatchNorm ours(kChannels);
  torch::nn::BatchNorm2dImpl theirs{torch::nn::BatchNorm2dOptions(kChannels)};
  const at::Tensor images = unlike_images(6);
  const at::Tensor slope = at::randn_like(images);
  const Outcome a = run(ours, images, slope);
  const Outcome b = run(theirs, images, slope);
  require_close(a.output, b.output);
  require_close(a.input_gradient, b.input_gradient);
  require_close(a.weight_gradient, b.weight_gradient);
  require_close(a.running_var, b.running_var);
  CHECK(ours.named_buffers()["num_batches_tracked"].item<std::int64_t>() == 1);
  ours.eval();
  theirs.eval();
  require_close(ours.forward(images), theirs.forward(images));
  CHECK(ours.named_buffers()["num_batches_tracked"].item<std::int64_t>() == 1);
}

/// As after a ReLU: half of the values are alike, which is what a running float sum stumbles over.
TEST_CASE("in fp32 on a CPU sums over many pixels keep their digits") {
  const at::Tensor images = (at::randn({128, kChannels, 28, 28}).clamp_min(0) + 3)
                                .contiguous(at::MemoryFormat::ChannelsLast);
  const at::Tensor slope = at::randn_like(images);
  BatchNorm ours(kChannels);
  torch::nn::BatchNorm2dImpl exact{torch::nn::BatchNorm2dOptions(kChannels)};
  exact.to(at::kDouble);
  const Outcome a = run(ours, images, slope);
  const Outcome b = run(exact, images.to(at::kDouble), slope.to(at::kDouble));
  const auto error = [](const at::Tensor& found, const at::Tensor& expected) {
    return ((found - expected).norm() / expected.norm()).item<double>();
  };
  CHECK(error(a.output, b.output) < 1e-6);
  CHECK(error(a.input_gradient, b.input_gradient) < 1e-6);
  CHECK(error(a.weight_gradient, b.weight_gradient) < 1e-5);
  CHECK(error(a.running_mean, b.running_mean) < 1e-6);
  CHECK(error(a.running_var, b.running_var) < 1e-6);
}

TEST_CASE("a synchronised batch norm sees the global batch, however uneven the shares are") {
  for (const std::int64_t count : {7, 2}) {  // with 2 samples rank 2 has none
    constexpr int kRanks = 3;
    const at::Tensor images = unlike_images(count);
    const at::Tensor slope = at::randn_like(images);
    torch::nn::BatchNorm2dImpl whole{torch::nn::BatchNorm2dOptions(kChannels)};
    const Outcome expected = run(whole, images, slope);
    std::vector<Outcome> outcomes(kRanks);
    testing::on_connected_ranks(kRanks, [&](comm::Communicator& communicator) {
      const data::Range mine = data::shard({0, count}, communicator.rank(), kRanks);
      BatchNorm layer(kChannels);
      layer.synchronize([&](at::Tensor& sums) { communicator.all_reduce_sum(sums); });
      outcomes[static_cast<std::size_t>(communicator.rank())] =
          run(layer, images.narrow(0, mine.begin, mine.size()),
              slope.narrow(0, mine.begin, mine.size()));
    });
    at::Tensor weight_gradient = at::zeros({kChannels});
    at::Tensor bias_gradient = at::zeros({kChannels});
    std::vector<at::Tensor> outputs;
    std::vector<at::Tensor> input_gradients;
    for (const Outcome& outcome : outcomes) {
      outputs.push_back(outcome.output);
      input_gradients.push_back(outcome.input_gradient);
      weight_gradient += outcome.weight_gradient;
      bias_gradient += outcome.bias_gradient;
      require_close(outcome.running_mean, expected.running_mean);
      require_close(outcome.running_var, expected.running_var);
    }
    require_close(at::cat(outputs), expected.output);
    require_close(at::cat(input_gradients), expected.input_gradient);
    require_close(weight_gradient, expected.weight_gradient);
    require_close(bias_gradient, expected.bias_gradient);
  }
}

}  // namespace
}  // namespace mnist_train::models
