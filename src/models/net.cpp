#include "models/net.h"

#include <ATen/ops/relu.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/linear.h>

#include "models/convolve_relu_max_pool.h"
#include "models/image_sizes.h"
#include "models/initialize.h"

namespace mnist_train::models {

namespace {

constexpr std::int64_t kKernel = 5;
constexpr std::int64_t kConv1Channels = 20;
constexpr std::int64_t kConv2Channels = 50;
constexpr std::int64_t kHidden = 500;

class Net : public Model {
 public:
  explicit Net(const ImageShape& shape)
      : conv1_(register_module("conv1", torch::nn::Conv2d(torch::nn::Conv2dOptions(
                                            shape.channels, kConv1Channels, kKernel)))),
        conv2_(register_module("conv2", torch::nn::Conv2d(torch::nn::Conv2dOptions(
                                            kConv1Channels, kConv2Channels, kKernel)))),
        fc1_(register_module(
            "fc1", torch::nn::Linear(features_after_conv_and_pool("net", shape, {kKernel, kKernel},
                                                                  kConv2Channels),
                                     kHidden))),
        fc2_(register_module("fc2", torch::nn::Linear(kHidden, shape.classes))) {}

  at::Tensor forward(const at::Tensor& images) override {
    at::Tensor x = convolve_relu_max_pool(conv1_, images);  // [N,20,12,12]
    x = convolve_relu_max_pool(conv2_, x);                  // [N,50,4,4]
    x = at::relu(fc1_(x.flatten(1)));                       // [N,500]
    return fc2_(x);                                         // [N,10]
  }

 private:
  torch::nn::Conv2d conv1_;
  torch::nn::Conv2d conv2_;
  torch::nn::Linear fc1_;
  torch::nn::Linear fc2_;
};

}  // namespace

std::shared_ptr<Model> make_net(const settings::ModelOptions& options, const ImageShape& shape) {
  auto net = std::make_shared<Net>(shape);
  if (options.init.name == settings::InitName::kNormal) {
    draw_normal(*net, options.init.std.value_or(0.1), BiasInit::kDrawn);
  }
  return net;
}

}  // namespace mnist_train::models
