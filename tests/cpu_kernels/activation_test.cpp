#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "cpu_kernels/blocked.h"
#include "cpu_kernels/kernels.h"
#include "support/catch.h"

namespace mnist_train::cpu_kernels {
namespace {

// Tests activation functions and their derivatives against fp64.

constexpr Function kAllFunctions[] = {Function::kRelu,    Function::kRelu6, Function::kLeakyRelu,
                                      Function::kSigmoid, Function::kTanh,  Function::kSilu,
                                      Function::kGelu};

double sigmoid(double x) { return 1 / (1 + std::exp(-x)); }

double activated(const ActivationSpec& activation, double x) {
  switch (activation.function) {
    case Function::kRelu:
      return std::max(0.0, x);
    case Function::kRelu6:
      return std::clamp(x, 0.0, 6.0);
    case Function::kLeakyRelu:
      return x > 0 ? x : static_cast<double>(activation.negative_slope) * x;
    case Function::kSigmoid:
      return sigmoid(x);
    case Function::kTanh:
      return std::tanh(x);
    case Function::kSilu:
      return x * sigmoid(x);
    case Function::kGelu:
      return x * std::erfc(-x / std::sqrt(2)) / 2;
  }
  return 0;
}

double derivative(const ActivationSpec& activation, double x) {
  switch (activation.function) {
    case Function::kRelu:
      return x > 0;
    case Function::kRelu6:
      return x > 0 && x < 6;
    case Function::kLeakyRelu:
      return x > 0 ? 1 : static_cast<double>(activation.negative_slope);
    case Function::kSigmoid:
      return sigmoid(x) * sigmoid(-x);
    case Function::kTanh:
      return 1 - std::tanh(x) * std::tanh(x);
    case Function::kSilu:
      return sigmoid(x) * (1 + x * sigmoid(-x));
    case Function::kGelu:
      return std::erfc(-x / std::sqrt(2)) / 2 +
             x * std::exp(-x * x / 2) / std::sqrt(2 * std::acos(-1.0));
  }
  return 0;
}

/// One block of one channel.
constexpr std::int64_t kPixels = 2000;
constexpr std::int64_t kCount = kPixels * kImages;

/// The results of a function for one block.
template <class Element>
struct Results {
  std::vector<Element> x, y, dy, dx;

  Results(const ActivationSpec& activation, const std::vector<float>& numbers,
          std::int64_t images) {
    const ValueShape shape{1, kPixels, 1};
    for (auto* blocks : {&x, &y, &dy, &dx}) *blocks = empty_blocks<Element>(shape, kImages);
    Draws<Element> draws(1);
    const std::vector<Element> gradients = draws.numbers(kCount);
    for_each_element<Element>(shape, kImages, [&](std::size_t plain, std::size_t at) {
      round_to(numbers[plain % numbers.size()], x[at]);
      dy[at] = gradients[plain];
    });
    const PixelRange range{kPixels, 1, images};
    const LayerKernels<Element>& kernels = kernel_table<Element>()->layers;
    kernels.activate(range, activation, x.data(), y.data());
    kernels.activation_gradient(range, activation, dy.data(),
                                activation.differentiates_output() ? y.data() : x.data(),
                                dx.data());
  }
};

/// Error limits per element.
struct Limits {
  double relative, absolute;
};

template <class Element>
void check_function(const ActivationSpec& activation, const Limits& value, const Limits& gradient) {
  if (!is_supported<Element>()) return;
  std::vector<float> numbers;
  for (std::int64_t i = 0; i < kCount; ++i) {
    // Numbers from -16 to 16; every fourth has a magnitude from 2e-12 to 1.7 instead.
    const float part = static_cast<float>(i) / kCount;
    numbers.push_back(i % 4 != 0
                          ? 32 * part - 16
                          : std::ldexp(i % 8 == 0 ? 1.3F : -1.7F, static_cast<int>(-40 * part)));
  }
  const Results<Element> found(activation, numbers, kImages);
  int wrong_values = 0;
  int wrong_gradients = 0;
  const auto is_wrong = [](double a, double b, const Limits& limits) {
    return !(std::fabs(a - b) <= limits.relative * std::fabs(b) + limits.absolute);
  };
  for_each_element<Element>({1, kPixels, 1}, kImages, [&](std::size_t, std::size_t at) {
    const double x = to_float(found.x[at]);
    const double dx = to_float(found.dy[at]) * derivative(activation, x);
    if (is_wrong(to_float(found.y[at]), activated(activation, x), value)) ++wrong_values;
    if (is_wrong(to_float(found.dx[at]), dx, gradient)) ++wrong_gradients;
  });
  INFO("function " << static_cast<int>(activation.function) << ", slope "
                   << activation.negative_slope << (kDepth<Element> == 2 ? ", bf16" : ", fp32"));
  CHECK(wrong_values == 0);
  CHECK(wrong_gradients == 0);
}

TEST_CASE("activations and their gradients match fp64 element by element") {
  for (const Function function : kAllFunctions) {
    for (const float slope : {0.01F, 0.0F, -0.5F}) {
      if (slope != 0.01F && function != Function::kLeakyRelu) continue;
      const ActivationSpec activation{function, slope};
      check_function<float>(activation, {3.5e-7, 1e-37}, {6e-7, 3e-7});
      // Some gradients are computed from the rounded output.
      check_function<Bf16Bits>(activation, {3.92e-3, 1e-37},
                               {3.92e-3, activation.differentiates_output() ? 4e-3 : 3e-7});
    }
  }
}

template <class Element>
void check_special_values(const ActivationSpec& activation) {
  if (!is_supported<Element>()) return;
  INFO("function " << static_cast<int>(activation.function));
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  const std::vector<float> numbers{std::nanf(""), kInfinity, 1e30F, -1e30F, 0.0F};
  const Results<Element> found(activation, numbers, 5);
  for_each_element<Element>({1, kPixels, 1}, kImages, [&](std::size_t plain, std::size_t at) {
    if (plain >= static_cast<std::size_t>(kPixels)) return;  // only the first image
    const float x = numbers[plain % numbers.size()];
    const double y = to_float(found.y[at]);
    if (std::isnan(x)) {
      REQUIRE(std::isnan(y));
    } else if (std::isinf(x)) {
      REQUIRE(y == activated(activation, x));
    } else {
      REQUIRE(y == testing::Approx(activated(activation, to_float(found.x[at]))).epsilon(0.004));
      const double dx = to_float(found.dy[at]) * derivative(activation, x);
      REQUIRE(to_float(found.dx[at]) == testing::Approx(dx).epsilon(0.004).margin(0.004));
    }
  });
  // The first padding image.
  for (std::size_t pixel = 0; pixel < static_cast<std::size_t>(kPixels); ++pixel) {
    REQUIRE(to_float(found.dx[(pixel * kImages + 5) * kDepth<Element>]) == 0);
  }
}

TEST_CASE("activations propagate NaN and infinity, and padding images get no gradient") {
  for (const Function function : kAllFunctions) {
    check_special_values<float>({function});
    check_special_values<Bf16Bits>({function});
  }
}

}  // namespace
}  // namespace mnist_train::cpu_kernels
