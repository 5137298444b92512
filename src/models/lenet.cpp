#include "models/lenet.h"

#include <ATen/ops/relu.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/linear.h>

#include "models/convolve_relu_max_pool.h"
#include "models/image_sizes.h"
#include "models/initialize.h"

namespace mnist_train::models {

namespace {

constexpr std::int64_t kKernel1 = 5;
constexpr std::int64_t kKernel2 = 3;
constexpr std::int64_t kConv1Channels = 6;
constexpr std::int64_t kConv2Channels = 16;
constexpr std::int64_t kHidden1 = 120;
constexpr std::int64_t kHidden2 = 84;

class LeNet : public Model {
 public:
  explicit LeNet(const ImageShape& shape)
      : conv1_(register_module("conv1", torch::nn::Conv2d(torch::nn::Conv2dOptions(
                                            shape.channels, kConv1Channels, kKernel1)))),
        conv2_(register_module("conv2", torch::nn::Conv2d(torch::nn::Conv2dOptions(
                                            kConv1Channels, kConv2Channels, kKernel2)))),
        fc1_(register_module(
            "fc1", torch::nn::Linear(features_after_conv_and_pool(
                                         "lenet", shape, {kKernel1, kKernel2}, kConv2Channels),
                                     kHidden1))),
        fc2_(register_module("fc2", torch::nn::Linear(kHidden1, kHidden2))),
        fc3_(register_module("fc3", torch::nn::Linear(kHidden2, shape.classes))) {}

  at::Tensor forward(const at::Tensor& images) override {
    at::Tensor x = convolve_relu_max_pool(conv1_, images);  // [N,6,12,12]
    x = convolve_relu_max_pool(conv2_, x);                  // [N,16,5,5]
    x = at::relu(fc1_(x.flatten(1)));                       // [N,120]
    x = at::relu(fc2_(x));                                  // [N,84]
    return fc3_(x);                                         // [N,10]
  }

 private:
  torch::nn::Conv2d conv1_;
  torch::nn::Conv2d conv2_;
  torch::nn::Linear fc1_;
  torch::nn::Linear fc2_;
  torch::nn::Linear fc3_;
};

}  // namespace

std::shared_ptr<Model> make_lenet(const settings::ModelOptions& options, const ImageShape& shape) {
  auto lenet = std::make_shared<LeNet>(shape);
  if (options.init.name == settings::InitName::kNormal) {
    draw_normal(*lenet, options.init.std.value_or(0.1), BiasInit::kDrawn);
  } else {
    draw_xavier_uniform(*lenet);
  }
  return lenet;
}

}  // namespace mnist_train::models
