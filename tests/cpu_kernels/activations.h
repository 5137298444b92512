#pragma once

#include <algorithm>
#include <cmath>

#include "cpu_kernels/kernels.h"

/// Activation functions and their derivatives in fp64.
namespace mnist_train::cpu_kernels {

inline constexpr Function kAllFunctions[] = {
    Function::kRelu,      Function::kRelu6,   Function::kLeakyRelu, Function::kHardsigmoid,
    Function::kHardswish, Function::kSigmoid, Function::kTanh,      Function::kSilu,
    Function::kGelu,      Function::kTanhGelu};

inline double sigmoid(double x) { return 1 / (1 + std::exp(-x)); }
/// The argument of tanh in GELU's approximation.
inline double gelu_argument(double x) {
  return std::sqrt(2 / std::acos(-1.0)) * (x + 0.044715 * x * x * x);
}

inline double activated(const ActivationSpec& activation, double x) {
  switch (activation.function) {
    case Function::kRelu:
      return std::max(0.0, x);
    case Function::kRelu6:
      return std::clamp(x, 0.0, 6.0);
    case Function::kLeakyRelu:
      return x > 0 ? x : static_cast<double>(activation.negative_slope) * x;
    case Function::kHardsigmoid:
      return std::clamp(x + 3, 0.0, 6.0) / 6;
    case Function::kHardswish:
      return x * std::clamp(x + 3, 0.0, 6.0) / 6;
    case Function::kSigmoid:
      return sigmoid(x);
    case Function::kTanh:
      return std::tanh(x);
    case Function::kSilu:
      return x * sigmoid(x);
    case Function::kGelu:
      return x * std::erfc(-x / std::sqrt(2)) / 2;
    case Function::kTanhGelu:
      return x * sigmoid(2 * gelu_argument(x));
  }
  return 0;
}

inline double derivative(const ActivationSpec& activation, double x) {
  switch (activation.function) {
    case Function::kRelu:
      return x > 0;
    case Function::kRelu6:
      return x > 0 && x < 6;
    case Function::kLeakyRelu:
      return x > 0 ? 1 : static_cast<double>(activation.negative_slope);
    case Function::kHardsigmoid:
      return x > -3 && x < 3 ? 1.0 / 6 : 0;
    case Function::kHardswish:
      return x >= 3 ? 1 : x <= -3 ? 0 : x / 3 + 0.5;
    case Function::kSigmoid:
      return sigmoid(x) * sigmoid(-x);
    case Function::kTanh:
      return 1 - std::tanh(x) * std::tanh(x);
    case Function::kSilu:
      return sigmoid(x) * (1 + x * sigmoid(-x));
    case Function::kGelu:
      return std::erfc(-x / std::sqrt(2)) / 2 +
             x * std::exp(-x * x / 2) / std::sqrt(2 * std::acos(-1.0));
    case Function::kTanhGelu: {
      const double s = sigmoid(2 * gelu_argument(x));
      const double slope = std::sqrt(2 / std::acos(-1.0)) * (1 + 3 * 0.044715 * x * x);
      return s + 2 * x * s * sigmoid(-2 * gelu_argument(x)) * slope;
    }
  }
  return 0;
}

}  // namespace mnist_train::cpu_kernels
