#pragma once

#include <cstdint>

#include "settings/model_options.h"

/// Layers for networks in tests.
namespace mnist_train::testing::layer {

inline settings::Layer convolution(std::int64_t out, std::int64_t kernel, std::int64_t padding = 0,
                                   std::int64_t stride = 1, bool bias = true,
                                   std::int64_t groups = 1) {
  settings::Conv2dLayer layer;
  layer.out_channels = out;
  layer.kernel_size = {kernel, kernel};
  layer.padding = settings::ImageSize{padding, padding};
  layer.stride = {stride, stride};
  layer.bias = bias;
  layer.groups = groups;
  return {"", layer};
}
inline settings::Layer linear(std::int64_t out, bool bias = true) {
  return {"", settings::LinearLayer{out, bias, {}}};
}
inline settings::Layer function(settings::Activation activation) {
  return {"", settings::ActivationLayer{activation}};
}
inline settings::Layer relu() { return function(settings::Activation::kRelu); }
inline settings::Layer batch_norm() { return {"", settings::BatchNormLayer{}}; }
inline settings::Layer max_pool() { return {"", settings::MaxPool2dLayer{}}; }
inline settings::Layer average_pool() { return {"", settings::AdaptiveAvgPool2dLayer{}}; }
inline settings::Layer sequential(const settings::LayerList& layers) {
  return {"", settings::SequentialLayer{layers}};
}
inline settings::Layer flatten() { return {"", settings::FlattenLayer{}}; }

}  // namespace mnist_train::testing::layer
