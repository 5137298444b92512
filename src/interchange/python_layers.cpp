#include "interchange/python_layers.h"

#include <spdlog/fmt/fmt.h>
#include <spdlog/fmt/ranges.h>

namespace mnist_train::interchange {

namespace {

using network::SizedLayer;
using settings::Activation;
using settings::ImageSize;

/// Returns one number for a square, else a tuple.
std::string python(const ImageSize& size) {
  if (size.height == size.width) return fmt::format("{}", size.height);
  return fmt::format("({}, {})", size.height, size.width);
}
std::string python(bool value) { return value ? "True" : "False"; }
std::string python(double value) { return fmt::format("{}", value); }
std::string python(std::int64_t value) { return fmt::format("{}", value); }

/// Adds an argument by its name, unless it has the value that PyTorch gives it by itself.
template <class Value>
void add_unless(const Value& usual, Arguments& arguments, const std::string& name,
                const Value& value) {
  if (value != usual) arguments.push_back(name + "=" + python(value));
}

std::string call(const std::string& function, const Arguments& arguments) {
  return fmt::format("{}({})", function, fmt::join(arguments, ", "));
}

/// Returns the arguments that both kinds of pooling begin with.
template <class Pool>
Arguments window(const Pool& layer) {
  const Pool usual;
  Arguments arguments{python(layer.kernel_size)};
  add_unless(layer.kernel_size, arguments, "stride", layer.stride.value());
  add_unless(usual.padding, arguments, "padding", layer.padding);
  return arguments;
}

}  // namespace

std::string expression_of(const SizedLayer& sized, const settings::Conv2dLayer& layer) {
  const settings::Conv2dLayer usual;
  Arguments arguments{python(sized.in.channels), python(layer.out_channels.value()),
                      python(layer.kernel_size)};
  add_unless(usual.stride, arguments, "stride", layer.stride);
  if (layer.padding) {
    add_unless(*usual.padding, arguments, "padding", *layer.padding);
  } else {
    arguments.emplace_back("padding=\"same\"");
  }
  add_unless(usual.dilation, arguments, "dilation", layer.dilation);
  add_unless(usual.groups, arguments, "groups", layer.groups);
  add_unless(usual.bias, arguments, "bias", layer.bias);
  return call("nn.Conv2d", arguments);
}

std::string expression_of(const SizedLayer& sized, const settings::LinearLayer& layer) {
  Arguments arguments{python(sized.in.channels), python(layer.out_features.value())};
  add_unless(settings::LinearLayer().bias, arguments, "bias", layer.bias);
  return call("nn.Linear", arguments);
}

std::string expression_of(const SizedLayer& sized, const settings::BatchNormLayer& layer) {
  const settings::BatchNormLayer usual;
  Arguments arguments{python(sized.in.channels)};
  add_unless(usual.eps, arguments, "eps", layer.eps);
  add_unless(usual.momentum, arguments, "momentum", layer.momentum);
  return call(sized.in.is_image ? "nn.BatchNorm2d" : "nn.BatchNorm1d", arguments);
}

std::string expression_of(const SizedLayer& sized, const settings::GroupNormLayer& layer) {
  Arguments arguments{python(layer.num_groups), python(sized.in.channels)};
  add_unless(settings::GroupNormLayer().eps, arguments, "eps", layer.eps);
  return call("nn.GroupNorm", arguments);
}

std::string expression_of(const settings::ActivationLayer& layer) {
  switch (layer.function) {
    case Activation::kRelu:
      return "nn.ReLU()";
    case Activation::kTanh:
      return "nn.Tanh()";
    case Activation::kSigmoid:
      return "nn.Sigmoid()";
    case Activation::kSilu:
      return "nn.SiLU()";
    case Activation::kGelu:
      return layer.tanh_approximates ? "nn.GELU(approximate=\"tanh\")" : "nn.GELU()";
    case Activation::kLeakyRelu:
      return call("nn.LeakyReLU", {python(layer.negative_slope)});
  }
  return {};
}

std::string expression_of(const settings::MaxPool2dLayer& layer) {
  const settings::MaxPool2dLayer usual;
  Arguments arguments = window(layer);
  add_unless(usual.dilation, arguments, "dilation", layer.dilation);
  add_unless(usual.ceil_mode, arguments, "ceil_mode", layer.ceil_mode);
  return call("nn.MaxPool2d", arguments);
}

std::string expression_of(const settings::AvgPool2dLayer& layer) {
  const settings::AvgPool2dLayer usual;
  Arguments arguments = window(layer);
  add_unless(usual.ceil_mode, arguments, "ceil_mode", layer.ceil_mode);
  add_unless(usual.count_include_pad, arguments, "count_include_pad", layer.count_include_pad);
  return call("nn.AvgPool2d", arguments);
}

std::string expression_of(const settings::AdaptiveAvgPool2dLayer& layer) {
  return call("nn.AdaptiveAvgPool2d", {python(layer.output_size)});
}

std::string expression_of(const settings::FlattenLayer& /*layer*/) { return "nn.Flatten()"; }

std::string expression_of(const settings::DropoutLayer& layer) {
  return call("nn.Dropout", {python(layer.p)});
}

}  // namespace mnist_train::interchange
