#include "model/net.h"

#include <ATen/ops/max_pool2d.h>
#include <ATen/ops/relu.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/linear.h>

#include <string>

#include "base/error.h"

namespace mnist_train::model {

namespace {

constexpr std::int64_t kKernel = 5;
constexpr std::int64_t kConv1Channels = 20;
constexpr std::int64_t kConv2Channels = 50;
constexpr std::int64_t kHidden = 500;

/// Side length after a convolution without padding and a pooling by 2.
std::int64_t after_block(std::int64_t side) { return (side - kKernel + 1) / 2; }

std::int64_t flat_features(const ImageShape& shape) {
  const std::int64_t height = after_block(after_block(shape.height));
  const std::int64_t width = after_block(after_block(shape.width));
  if (height < 1 || width < 1) {
    throw Error(ExitCode::kConfig, "model \"net\" needs images of at least 16x16, the data has " +
                                       std::to_string(shape.height) + "x" +
                                       std::to_string(shape.width));
  }
  return kConv2Channels * height * width;
}

class Net : public Model {
 public:
  explicit Net(const ImageShape& shape)
      : conv1_(register_module("conv1", torch::nn::Conv2d(torch::nn::Conv2dOptions(
                                            shape.channels, kConv1Channels, kKernel)))),
        conv2_(register_module("conv2", torch::nn::Conv2d(torch::nn::Conv2dOptions(
                                            kConv1Channels, kConv2Channels, kKernel)))),
        fc1_(register_module("fc1", torch::nn::Linear(flat_features(shape), kHidden))),
        fc2_(register_module("fc2", torch::nn::Linear(kHidden, shape.classes))) {}

  at::Tensor forward(const at::Tensor& images) override {
    // ReLU after the pooling gives the same numbers and gradients as before it, on a quarter of the
    // elements.
    at::Tensor x = at::relu(at::max_pool2d(conv1_(images), 2));  // [N,20,12,12]
    x = at::relu(at::max_pool2d(conv2_(x), 2));                  // [N,50,4,4]
    x = at::relu(fc1_(x.flatten(1)));                            // [N,500]
    return fc2_(x);                                              // [N,10]
  }

 private:
  torch::nn::Conv2d conv1_;
  torch::nn::Conv2d conv2_;
  torch::nn::Linear fc1_;
  torch::nn::Linear fc2_;
};

}  // namespace

std::shared_ptr<Model> make_net(const options::ModelOptions& /*options*/, const ImageShape& shape) {
  return std::make_shared<Net>(shape);
}

}  // namespace mnist_train::model
