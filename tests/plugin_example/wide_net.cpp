// A network for `"model": {"plugin": "libwide_net.so", "options": {"width": 32}}`.

#include <mnist_train/model.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/linear.h>

namespace {

using mnist_train::plugin::DataShape;
using mnist_train::plugin::Options;

class WideNet : public mnist_train::plugin::Classifier {
 public:
  WideNet(const DataShape& shape, Options& options)
      : width_(options.integer("width", 16, 1, 1024)),
        dropout_(options.number("dropout", 0, 0, 0.9)),
        gelu_(options.text("activation", "relu", {"relu", "gelu"}) == "gelu") {
    const bool bias = options.boolean("bias", true);
    conv_ = register_module(
        "conv", torch::nn::Conv2d(torch::nn::Conv2dOptions(shape.channels, width_, 5).bias(bias)));
    norm_ = register_module("norm", torch::nn::BatchNorm2d(width_));
    fc_ = register_module("fc", torch::nn::Linear(width_ * 16, shape.classes));
    gain_ = register_parameter("gain", torch::ones({1}));
  }

  at::Tensor forward(at::Tensor images) override {
    at::Tensor x = norm_(conv_(images));
    x = gelu_ ? at::gelu(x) : at::relu(x);
    x = at::adaptive_avg_pool2d(x, {4, 4}).flatten(1);
    return fc_(at::dropout(x, dropout_, is_training())) * gain_;
  }

 private:
  std::int64_t width_;
  double dropout_;
  bool gelu_;
  torch::nn::Conv2d conv_ = nullptr;
  torch::nn::BatchNorm2d norm_ = nullptr;
  torch::nn::Linear fc_ = nullptr;
  at::Tensor gain_;
};

}  // namespace

MNIST_TRAIN_CLASSIFIER(WideNet)
