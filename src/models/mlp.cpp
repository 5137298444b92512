#include "models/mlp.h"

#include <ATen/ops/relu.h>
#include <ATen/ops/sigmoid.h>
#include <ATen/ops/tanh.h>
#include <torch/nn/modules/linear.h>

#include <string>
#include <vector>

#include "models/initialize.h"

namespace mnist_train::models {

namespace {

at::Tensor activate(const at::Tensor& x, settings::Activation activation) {
  switch (activation) {
    case settings::Activation::kRelu:
      return at::relu(x);
    case settings::Activation::kSigmoid:
      return at::sigmoid(x);
    default:
      return at::tanh(x);
  }
}

class Mlp : public Model {
 public:
  Mlp(const settings::ModelOptions& options, const ImageShape& shape)
      : activation_(options.activation) {
    std::int64_t features = shape.channels * shape.height * shape.width;
    for (const std::int64_t size : options.hidden) {
      add_layer(features, size);
      features = size;
    }
    add_layer(features, shape.classes);
  }

  at::Tensor forward(const at::Tensor& images) override {
    at::Tensor x = images.flatten(1);  // [N,C*H*W]
    for (std::size_t i = 0; i + 1 < layers_.size(); ++i) x = activate(layers_[i](x), activation_);
    return layers_.back()(x);  // [N,classes]
  }

 private:
  void add_layer(std::int64_t in, std::int64_t out) {
    layers_.push_back(
        register_module("fc" + std::to_string(layers_.size() + 1), torch::nn::Linear(in, out)));
  }

  settings::Activation activation_;
  std::vector<torch::nn::Linear> layers_;
};

}  // namespace

std::shared_ptr<Model> make_mlp(const settings::ModelOptions& options, const ImageShape& shape) {
  auto mlp = std::make_shared<Mlp>(options, shape);
  if (options.init.name == settings::InitName::kNormal) {
    draw_normal(*mlp, options.init.std.value_or(0.1), BiasInit::kDrawn);
  }
  return mlp;
}

}  // namespace mnist_train::models
