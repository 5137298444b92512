#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "settings/image_size.h"

namespace mnist_train::settings {

enum class Activation { kTanh, kRelu, kSigmoid, kGelu, kSilu, kLeakyRelu };
enum class InitName { kDefault, kNormal, kXavierUniform, kKaimingNormal };

/// How the weights of a layer, or of all layers of a model, are initialized.
struct InitOptions {
  InitName name = InitName::kDefault;
  std::optional<double> std;  // of normal; none: the model's default

  bool operator==(const InitOptions&) const = default;
};

// The kinds of layers, each with the arguments of the module of torch.nn that it is. Heights and
// widths are in pixels; what a layer takes in is inferred.

/// A size that the config gives; none stands for the number of classes of the data.
using OutputSize = std::optional<std::int64_t>;

/// Zeros on every side of the images: so many, or as many as keep their size ("same").
using Padding = std::optional<ImageSize>;

struct Conv2dLayer {
  OutputSize out_channels;
  ImageSize kernel_size{1, 1};
  ImageSize stride{1, 1};
  Padding padding = ImageSize{0, 0};
  ImageSize dilation{1, 1};
  std::int64_t groups = 1;
  bool bias = true;
  std::optional<InitOptions> init;  // none: the model's

  bool operator==(const Conv2dLayer&) const = default;
};

struct LinearLayer {
  OutputSize out_features;
  bool bias = true;
  std::optional<InitOptions> init;  // none: the model's

  bool operator==(const LinearLayer&) const = default;
};

struct BatchNormLayer {
  double eps = 1e-5;
  double momentum = 0.1;

  bool operator==(const BatchNormLayer&) const = default;
};

struct GroupNormLayer {
  std::int64_t num_groups = 1;
  double eps = 1e-5;

  bool operator==(const GroupNormLayer&) const = default;
};

struct ActivationLayer {
  Activation function = Activation::kRelu;
  double negative_slope = 0.01;    // leaky_relu
  bool tanh_approximates = false;  // gelu

  bool operator==(const ActivationLayer&) const = default;
};

struct MaxPool2dLayer {
  ImageSize kernel_size{2, 2};
  std::optional<ImageSize> stride;  // none: the kernel's size
  ImageSize padding{0, 0};
  ImageSize dilation{1, 1};
  bool ceil_mode = false;

  bool operator==(const MaxPool2dLayer&) const = default;
};

struct AvgPool2dLayer {
  ImageSize kernel_size{2, 2};
  std::optional<ImageSize> stride;  // none: the kernel's size
  ImageSize padding{0, 0};
  bool ceil_mode = false;
  bool count_include_pad = true;

  bool operator==(const AvgPool2dLayer&) const = default;
};

struct AdaptiveAvgPool2dLayer {
  ImageSize output_size{1, 1};

  bool operator==(const AdaptiveAvgPool2dLayer&) const = default;
};

struct FlattenLayer {
  bool operator==(const FlattenLayer&) const = default;
};

struct DropoutLayer {
  double p = 0.5;

  bool operator==(const DropoutLayer&) const = default;
};

/// Returns the function's name in the config, such as "relu".
std::string name_of(Activation function);

}  // namespace mnist_train::settings
