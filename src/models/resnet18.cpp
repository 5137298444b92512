#include <ATen/ops/relu.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/linear.h>

#include <string>
#include <vector>

#include "models/batch_norm.h"
#include "models/networks.h"

namespace mnist_train::models {

namespace {

using torch::nn::Conv2d;
using torch::nn::Conv2dOptions;
using torch::nn::Sequential;

/// Two 3x3 convolutions with batch norm, added to the shortcut. With `stride` 2 the block halves
/// the image, and the shortcut has a 1x1 convolution.
class ResidualBlock : public torch::nn::Module {
 public:
  ResidualBlock(std::int64_t in, std::int64_t out, std::int64_t stride)
      : conv1_(
            register_module("conv1", Conv2d(Conv2dOptions(in, out, 3).padding(1).stride(stride)))),
        conv2_(register_module("conv2", Conv2d(Conv2dOptions(out, out, 3).padding(1)))) {
    if (stride > 1) {
      conv3_ = register_module("conv3", Conv2d(Conv2dOptions(in, out, 1).stride(stride)));
    }
    bn1_ = register_module("bn1", std::make_shared<BatchNorm2d>(out));
    bn2_ = register_module("bn2", std::make_shared<BatchNorm2d>(out));
  }

  at::Tensor forward(const at::Tensor& x) {
    const at::Tensor y = bn2_->forward(conv2_(at::relu(bn1_->forward(conv1_(x)))));
    return at::relu(y + (conv3_ ? conv3_(x) : x));
  }

 private:
  Conv2d conv1_;
  Conv2d conv2_;
  Conv2d conv3_{nullptr};
  std::shared_ptr<BatchNorm2d> bn1_;
  std::shared_ptr<BatchNorm2d> bn2_;
};

class ResNet18 : public Model {
 public:
  explicit ResNet18(const ImageShape& shape)
      : conv_(register_module("0", Conv2d(Conv2dOptions(shape.channels, 64, 3).padding(1)))),
        norm_(register_module("1", std::make_shared<BatchNorm2d>(64))) {
    add_stage(64, 64, /*stride=*/1);
    add_stage(64, 128, /*stride=*/2);
    add_stage(128, 256, /*stride=*/2);
    add_stage(256, 512, /*stride=*/2);
    // In the chapter, "fc.0" is the flattening.
    fc_ = register_module("fc", Sequential({{"1", torch::nn::Linear(512, shape.classes)}}));
  }

  at::Tensor forward(const at::Tensor& images) override {
    at::Tensor x = at::relu(norm_->forward(conv_(images)));   // [N,64,28,28]
    for (Sequential& stage : stages_) x = stage->forward(x);  // [N,512,4,4]
    return fc_->forward(x.mean(at::IntArrayRef{2, 3}));       // [N,10]
  }

 private:
  void add_stage(std::int64_t in, std::int64_t out, std::int64_t stride) {
    Sequential stage;
    stage->push_back(std::make_shared<ResidualBlock>(in, out, stride));
    stage->push_back(std::make_shared<ResidualBlock>(out, out, /*stride=*/1));
    stages_.push_back(
        register_module("resnet_block" + std::to_string(stages_.size() + 1), std::move(stage)));
  }

  Conv2d conv_;
  std::shared_ptr<BatchNorm2d> norm_;
  std::vector<Sequential> stages_;
  Sequential fc_{nullptr};
};

}  // namespace

std::shared_ptr<Model> make_resnet18(const settings::ModelOptions& /*options*/,
                                     const ImageShape& shape) {
  return std::make_shared<ResNet18>(shape);
}

}  // namespace mnist_train::models
