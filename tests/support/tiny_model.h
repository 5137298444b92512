#pragma once

#include <ATen/ops/relu.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/linear.h>
#include <torch/utils.h>

#include <cstdint>
#include <memory>
#include <mutex>

#include "models/model.h"

namespace mnist_train::testing {

/// A model with few weights for images [1,16,16] and every kind of tensor in its state_dict:
/// convolution, vector, matrix and, with batch norm, buffers, one of which is an integer.
class TinyModel : public models::Model {
 public:
  explicit TinyModel(bool with_batch_norm)
      : conv_(register_module("conv", torch::nn::Conv2d(torch::nn::Conv2dOptions(1, 3, 5)))) {
    if (with_batch_norm) norm_ = register_module("norm", torch::nn::BatchNorm2d(3));
    fc_ = register_module("fc", torch::nn::Linear(3 * 12 * 12, 10));
  }

  at::Tensor forward(const at::Tensor& images) override {
    at::Tensor x = conv_(images);
    if (!norm_.is_empty()) x = norm_(x);
    return fc_(at::relu(x).flatten(1));
  }

 private:
  torch::nn::Conv2d conv_;
  torch::nn::BatchNorm2d norm_{nullptr};
  torch::nn::Linear fc_{nullptr};
};

/// The same seed gives the same weights, on any thread.
inline std::shared_ptr<TinyModel> tiny_model(std::int64_t seed, bool with_batch_norm = false) {
  static std::mutex one_generator;
  const std::lock_guard lock(one_generator);
  torch::manual_seed(static_cast<std::uint64_t>(seed));
  return std::make_shared<TinyModel>(with_batch_norm);
}

/// Returns a built-in network.
inline std::shared_ptr<models::Model> built_in_model(settings::ModelName name, std::int64_t seed,
                                                     const network::ImageShape& images = {}) {
  settings::ModelOptions options;
  options.name = name;
  return models::make_model(options, images, seed);
}

}  // namespace mnist_train::testing
