#include "models/neighbours.h"

namespace mnist_train::models {

namespace {

using network::SizedLayer;
using settings::ImageSize;

bool is_relu(const SizedLayer& sized) {
  const auto* layer = kind_as<settings::ActivationLayer>(sized);
  return layer != nullptr && layer->function == settings::Activation::kRelu;
}

bool is_max_pool_by_2(const SizedLayer& sized) {
  const auto* layer = kind_as<settings::MaxPool2dLayer>(sized);
  settings::MaxPool2dLayer by_2;
  by_2.stride = by_2.kernel_size;
  return layer != nullptr && *layer == by_2;
}

bool averages_all(const SizedLayer& sized) {
  const auto* layer = kind_as<settings::AdaptiveAvgPool2dLayer>(sized);
  return layer != nullptr && layer->output_size == ImageSize{1, 1};
}

}  // namespace

bool are_convolution_relu_max_pool(Neighbours next) {
  return next.size() >= 3 && kind_as<settings::Conv2dLayer>(*next[0]) != nullptr &&
         are_relu_max_pool(next.subspan(1));
}

bool are_relu_max_pool(Neighbours next) {
  return next.size() >= 2 && is_relu(*next[0]) && is_max_pool_by_2(*next[1]);
}

bool are_biased_convolution_batch_norm(Neighbours next) {
  if (next.size() < 2 || kind_as<settings::BatchNormLayer>(*next[1]) == nullptr) return false;
  const auto* convolution = kind_as<settings::Conv2dLayer>(*next[0]);
  return convolution != nullptr && convolution->bias;
}

bool begin_with_flatten(Neighbours next) {
  return !next.empty() && kind_as<settings::FlattenLayer>(*next[0]) != nullptr;
}

bool are_batch_norm_relu(Neighbours next) {
  return next.size() >= 2 && kind_as<settings::BatchNormLayer>(*next[0]) != nullptr &&
         is_relu(*next[1]) && !are_relu_max_pool(next.subspan(1));
}

bool are_linear_activation(Neighbours next) {
  if (next.size() < 2 || kind_as<settings::LinearLayer>(*next[0]) == nullptr) return false;
  const auto* behind = kind_as<settings::ActivationLayer>(*next[1]);
  return behind != nullptr && (behind->function == settings::Activation::kRelu ||
                               behind->function == settings::Activation::kTanh);
}

bool are_average_flatten(Neighbours next) {
  return next.size() >= 2 && averages_all(*next[0]) && begin_with_flatten(next.subspan(1));
}

}  // namespace mnist_train::models
