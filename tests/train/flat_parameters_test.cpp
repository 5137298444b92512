#include "train/flat_parameters.h"

#include "models/model.h"
#include "support/catch.h"

namespace mnist_train::train {
namespace {

constexpr std::int64_t kStatistics = 4;

std::vector<at::Tensor> copies(const std::vector<at::Tensor>& tensors) {
  std::vector<at::Tensor> result;
  for (const at::Tensor& tensor : tensors) result.push_back(tensor.detach().clone());
  return result;
}

/// Returns whether a tensor is contiguous, in channels_last order if it has four dimensions.
bool is_dense(const at::Tensor& tensor) {
  if (tensor.dim() != 4) return tensor.is_contiguous();
  const std::int64_t in = tensor.size(1);
  const std::int64_t width = tensor.size(3);
  return tensor.strides().vec() ==
         std::vector<std::int64_t>{in * tensor.size(2) * width, 1, width * in, in};
}

TEST_CASE("parameters keep their values and become views of one buffer") {
  const auto model = models::make_model({}, {}, 1);
  const std::vector<at::Tensor> before = copies(model->parameters());
  FlatParameters flat(*model, kStatistics);
  const std::vector<at::Tensor> after = model->parameters();
  std::int64_t elements = 0;
  std::int64_t nonzero = 0;
  for (std::size_t i = 0; i < before.size(); ++i) {
    CHECK(after[i].equal(before[i]));
    CHECK(after[i].storage().is_alias_of(flat.values().storage()));
    CHECK(after[i].requires_grad());
    CHECK(after[i].is_leaf());
    CHECK(after[i].storage_offset() % 8 == 0);  // 16-byte aligned in bf16
    nonzero += before[i].count_nonzero().item<std::int64_t>();
    elements += (before[i].numel() + 7) / 8 * 8;
  }
  CHECK(flat.values().count_nonzero().item<std::int64_t>() == nonzero);  // the padding is 0
  CHECK(flat.values().numel() == elements);
  CHECK(flat.gradients().numel() == elements);
  CHECK(flat.statistics().numel() == kStatistics);
  const comm::GradientBuffer buffer = flat.gradient_buffer();
  CHECK(buffer.flat.numel() == elements + kStatistics);
  CHECK(buffer.statistics == kStatistics);
  CHECK(buffer.flat.storage().is_alias_of(flat.gradients().storage()));
  CHECK(buffer.flat.storage().is_alias_of(flat.statistics().storage()));
}

TEST_CASE("parameters, gradients and momentum have equal strides, channels_last for convolutions") {
  const auto model = models::make_model({}, {}, 1);  // conv1 has one input channel
  FlatParameters flat(*model, kStatistics);
  const at::Tensor momentum = at::empty_like(flat.values());
  const at::NoGradGuard no_grad;
  flat.values().copy_(at::arange(flat.values().numel(), at::kFloat));
  for (std::size_t i = 0; i < flat.parameters().size(); ++i) {
    const at::Tensor& parameter = flat.parameters()[i];
    CHECK(is_dense(parameter));
    CHECK(parameter.equal(flat.view_like_parameter(flat.values(), i)));
    CHECK(flat.view_like_parameter(flat.gradients(), i).strides() == parameter.strides());
    CHECK(flat.view_like_parameter(momentum, i).strides() == parameter.strides());
    CHECK(flat.view_like_parameter(momentum, i).storage_offset() == parameter.storage_offset());
  }
}

TEST_CASE("gradients replace the previous step's gradients and accumulate within a step") {
  const auto model = models::make_model({}, {}, 1);
  const auto reference = models::make_model({}, {}, 1);
  FlatParameters flat(*model, kStatistics);
  flat.statistics().fill_(3);
  const at::Tensor images = at::randn({4, 1, 28, 28});
  reference->forward(images).square().sum().backward();
  const auto expected = reference->parameters();
  flat.gradients().fill_(7);
  model->forward(images).sum().backward();
  flat.begin_shard(0);  // drops these gradients
  for (const int times : {1, 2}) {
    model->forward(images).square().sum().backward();
    flat.collect_gradients();
    for (std::size_t i = 0; i < expected.size(); ++i) {
      CHECK_FALSE(flat.parameters()[i].grad().defined());
      CHECK(at::allclose(flat.view_like_parameter(flat.gradients(), i), times * expected[i].grad(),
                         1e-4, 1e-4));
    }
    CHECK(flat.statistics().equal(at::full({kStatistics}, 3.0F)));
  }
}

TEST_CASE("parameters with equal settings are contiguous, and frozen ones are last") {
  const bool bf16 = GENERATE(false, true);
  const auto model = models::make_model({}, {}, 1);  // conv1, conv2, fc1, fc2: weights and biases
  const auto copy = models::make_model({}, {}, 1);
  if (bf16) copy->compute_in_bfloat16();
  const std::vector<at::Tensor> before = copies(model->parameters());
  std::vector<settings::ParameterSettings> settings(8);
  settings[0].frozen = settings[5].frozen = true;
  for (const std::size_t bias : {1U, 3U, 7U}) settings[bias].weight_decay = 0;
  FlatParameters flat(*model, kStatistics, bf16 ? copy.get() : nullptr, {}, settings);
  CHECK(flat.names() == std::vector<std::string>{"conv1.bias", "conv2.weight", "conv2.bias",
                                                 "fc1.weight", "fc2.weight", "fc2.bias"});
  REQUIRE(flat.spans().size() == 2);
  CHECK(flat.spans()[0].kind.weight_decay == 0);
  CHECK(flat.spans()[0].slice.size == 24 + 56 + 16);  // each begins at a multiple of 8
  CHECK(flat.spans()[1].slice.begin == 24 + 56 + 16);
  CHECK(flat.spans()[1].slice.begin + flat.spans()[1].slice.size == flat.values().numel());
  CHECK(flat.weights().numel() == flat.values().numel() + 504 + 504);
  const std::vector<at::Tensor> after = model->parameters();
  const std::vector<at::Tensor> computing = (bf16 ? copy : model)->parameters();
  for (std::size_t i = 0; i < after.size(); ++i) {
    INFO(i);
    CHECK(after[i].equal(before[i]));
    CHECK(after[i].storage().is_alias_of(flat.weights().storage()));
    CHECK(computing[i].equal(before[i].to(computing[i].scalar_type())));
    CHECK(computing[i].requires_grad() == !settings[i].frozen);
  }
  flat.weights().add_(1);
  flat.refresh_bf16_copy();
  CHECK(computing[0].equal((before[0] + 1).to(computing[0].scalar_type())));
}

}  // namespace
}  // namespace mnist_train::train
