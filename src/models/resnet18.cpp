#include "models/resnet18.h"

#include <ATen/ops/relu.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/linear.h>

#include <array>
#include <string>
#include <vector>

#include "models/batch_norm.h"
#include "models/initialize.h"

namespace mnist_train::models {

namespace {

using torch::nn::Conv2d;
using torch::nn::Conv2dOptions;

/// Two 3x3 convolutions with batch norm, added to what came in.
class ResidualBlock : public torch::nn::Module {
 public:
  /// A `shrinking` block halves the image and changes the channels; the way around it then has a
  /// 1x1 convolution.
  ResidualBlock(std::int64_t in, std::int64_t out, bool shrinking)
      : conv1_(register_module(
            "conv1", Conv2d(Conv2dOptions(in, out, 3).padding(1).stride(shrinking ? 2 : 1)))),
        conv2_(register_module("conv2", Conv2d(Conv2dOptions(out, out, 3).padding(1)))) {
    if (shrinking) {
      conv3_ = register_module("conv3", Conv2d(Conv2dOptions(in, out, 1).stride(2)));
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

/// A module whose children are named by the caller, as Python's nn.Sequential.
class Stage : public torch::nn::Module {
 public:
  void add(std::shared_ptr<ResidualBlock> block) {
    blocks_.push_back(register_module(std::to_string(blocks_.size()), std::move(block)));
  }
  at::Tensor forward(at::Tensor x) {
    for (const auto& block : blocks_) x = block->forward(x);
    return x;
  }

 private:
  std::vector<std::shared_ptr<ResidualBlock>> blocks_;
};

/// `fc`: number 0 is the flattening, number 1 the linear layer.
class Head : public torch::nn::Module {
 public:
  Head(std::int64_t features, std::int64_t classes)
      : linear_(register_module("1", torch::nn::Linear(features, classes))) {}
  at::Tensor forward(const at::Tensor& x) { return linear_(x); }

 private:
  torch::nn::Linear linear_;
};

class ResNet18 : public Model {
 public:
  explicit ResNet18(const ImageShape& shape)
      : conv_(register_module("0", Conv2d(Conv2dOptions(shape.channels, 64, 3).padding(1)))),
        norm_(register_module("1", std::make_shared<BatchNorm2d>(64))) {
    constexpr std::array<std::int64_t, 4> kChannels{64, 128, 256, 512};
    std::int64_t in = kChannels.front();
    for (std::size_t i = 0; i < kChannels.size(); ++i) {
      auto stage = std::make_shared<Stage>();
      stage->add(std::make_shared<ResidualBlock>(in, kChannels[i], /*shrinking=*/i > 0));
      stage->add(std::make_shared<ResidualBlock>(kChannels[i], kChannels[i], false));
      stages_.push_back(register_module("resnet_block" + std::to_string(i + 1), std::move(stage)));
      in = kChannels[i];
    }
    head_ = register_module("fc", std::make_shared<Head>(in, shape.classes));
  }

  at::Tensor forward(const at::Tensor& images) override {
    at::Tensor x = at::relu(norm_->forward(conv_(images)));   // [N,64,28,28]
    for (const auto& stage : stages_) x = stage->forward(x);  // [N,512,4,4]
    return head_->forward(x.mean(at::IntArrayRef{2, 3}));     // [N,10]
  }

 private:
  Conv2d conv_;
  std::shared_ptr<BatchNorm2d> norm_;
  std::vector<std::shared_ptr<Stage>> stages_;
  std::shared_ptr<Head> head_;
};

}  // namespace

std::shared_ptr<Model> make_resnet18(const settings::ModelOptions& options,
                                     const ImageShape& shape) {
  auto resnet = std::make_shared<ResNet18>(shape);
  if (options.init.name == settings::InitName::kNormal) {
    draw_normal(*resnet, options.init.std.value_or(0.01), BiasInit::kDefault);
  }
  return resnet;
}

}  // namespace mnist_train::models
