#include "train/flat_parameters.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/randn.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/linear.h>

#include <cstdint>
#include <vector>

#include "models/model.h"
#include "support/catch.h"

namespace mnist_train::train {
namespace {

constexpr std::int64_t kRiders = 4;

std::vector<at::Tensor> copies(const std::vector<at::Tensor>& tensors) {
  std::vector<at::Tensor> result;
  for (const at::Tensor& tensor : tensors) result.push_back(tensor.detach().clone());
  return result;
}

/// Whether the strides are those of channels_last (of a convolution), else of a dense tensor.
bool is_dense(const at::Tensor& tensor) {
  if (tensor.dim() != 4) return tensor.is_contiguous();
  const std::int64_t in = tensor.size(1);
  const std::int64_t width = tensor.size(3);
  return tensor.strides().vec() ==
         std::vector<std::int64_t>{in * tensor.size(2) * width, 1, width * in, in};
}

TEST_CASE("parameters keep their values and become views of one memory") {
  const auto model = models::make_model({}, {}, 1);
  const std::vector<at::Tensor> before = copies(model->parameters());
  const FlatParameters flat(*model, kRiders);
  const std::vector<at::Tensor> after = model->parameters();
  std::int64_t elements = 0;
  for (std::size_t i = 0; i < before.size(); ++i) {
    CHECK(after[i].equal(before[i]));
    CHECK(after[i].storage().is_alias_of(flat.values().storage()));
    CHECK(after[i].requires_grad());
    CHECK(after[i].is_leaf());
    elements += before[i].numel();
  }
  CHECK(flat.values().numel() == elements);
  CHECK(flat.gradients().numel() == elements);
  CHECK(flat.riders().numel() == kRiders);
  CHECK(flat.gradients_and_riders().numel() == elements + kRiders);
  CHECK(flat.gradients_and_riders().storage().is_alias_of(flat.riders().storage()));
}

TEST_CASE("parameter, gradient and momentum share strides, convolutions have channels_last") {
  const auto model = models::make_model({}, {}, 1);  // with one input channel, too
  const FlatParameters flat(*model, kRiders);
  const at::Tensor momentum = at::empty_like(flat.values());
  for (std::size_t i = 0; i < flat.parameters().size(); ++i) {
    const at::Tensor& parameter = flat.parameters()[i];
    CHECK(is_dense(parameter));
    CHECK(flat.view_like_parameter(flat.gradients(), i).strides() == parameter.strides());
    CHECK(flat.view_like_parameter(momentum, i).strides() == parameter.strides());
    CHECK(flat.view_like_parameter(momentum, i).storage_offset() == parameter.storage_offset());
  }
}

TEST_CASE("an element of the flat values belongs to its parameter's place") {
  const auto model = models::make_model({}, {}, 1);
  const FlatParameters flat(*model, kRiders);
  const at::NoGradGuard no_grad;
  flat.values().copy_(at::arange(flat.values().numel(), at::kFloat));
  for (std::size_t i = 0; i < flat.parameters().size(); ++i) {
    const at::Tensor& parameter = flat.parameters()[i];
    CHECK(parameter.equal(flat.view_like_parameter(flat.values(), i)));
  }
}

TEST_CASE("gradients of backward take the place of those before, or are added, beside the riders") {
  const auto model = models::make_model({}, {}, 1);
  const auto reference = models::make_model({}, {}, 1);
  const FlatParameters flat(*model, kRiders);
  flat.riders().fill_(3);
  const at::Tensor images = at::randn({4, 1, 28, 28});
  reference->forward(images).square().sum().backward();
  const auto expected = reference->parameters();
  flat.gradients().fill_(7);
  for (const int times : {1, 2}) {
    model->forward(images).square().sum().backward();
    flat.collect_gradients(/*add=*/times > 1);
    for (std::size_t i = 0; i < expected.size(); ++i) {
      CHECK_FALSE(flat.parameters()[i].grad().defined());
      CHECK(at::allclose(flat.view_like_parameter(flat.gradients(), i), times * expected[i].grad(),
                         1e-4, 1e-4));
    }
    CHECK(flat.riders().equal(at::full({kRiders}, 3.0F)));
  }
}

TEST_CASE("what a step leaves behind is cleared for the next one") {
  const auto model = models::make_model({}, {}, 1);
  const FlatParameters flat(*model, kRiders);
  flat.riders().fill_(3);
  model->forward(at::randn({4, 1, 28, 28})).square().sum().backward();
  flat.clear();
  for (const at::Tensor& parameter : flat.parameters()) CHECK_FALSE(parameter.grad().defined());
  CHECK(flat.riders().count_nonzero().item<std::int64_t>() == 0);
}

TEST_CASE("without riders there are gradients alone") {
  torch::nn::Linear linear(3, 2);
  const FlatParameters flat(*linear, 0);
  CHECK(flat.riders().numel() == 0);
  CHECK(flat.gradients_and_riders().numel() == 8);
}

}  // namespace
}  // namespace mnist_train::train
