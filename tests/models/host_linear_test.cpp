#include "models/host_linear.h"

#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/full.h>
#include <ATen/ops/linspace.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/relu.h>
#include <ATen/ops/tanh.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/threshold_backward.h>
#include <ATen/ops/zeros.h>
#include <torch/nn/modules/linear.h>

#include <array>
#include <cmath>
#include <limits>
#include <memory>
#include <utility>
#include <vector>

#include "kernels/launch.h"
#include "models/linear_activation.h"
#include "support/catch.h"

namespace mnist_train::models {
namespace {

using kernels::LinearFunction;

/// Numbers whose sums of products fp32 holds exactly, in any order.
at::Tensor integers_up_to(at::IntArrayRef sizes, at::ScalarType type) {
  return at::randint(-2, 3, sizes, at::kFloat).to(type);
}

struct Products {
  at::Tensor y, of_x, of_weight;

  bool operator==(const Products& other) const {
    return y.equal(other.y) && of_x.equal(other.of_x) && of_weight.equal(other.of_weight);
  }
};

struct Layer {
  at::Tensor x, weight, bias, gradient;

  Layer(std::int64_t batch, std::int64_t in, std::int64_t out, at::ScalarType type)
      : x(integers_up_to({batch, in}, type)),
        weight(integers_up_to({out, in}, type)),
        bias(integers_up_to({out}, type)),
        gradient(integers_up_to({batch, out}, type)) {}

  Products products(bool relu) const {
    return {host_linear(x, weight, bias, relu), host_linear_input_gradient(gradient, weight),
            host_linear_weight_gradient(gradient, x)};
  }

  Products expected(bool relu) const {
    const auto exact = [](const at::Tensor& tensor) { return tensor.to(at::kFloat); };
    const at::ScalarType type = x.scalar_type();
    const at::Tensor y = exact(x).mm(exact(weight).t()) + exact(bias);
    return {(relu ? at::relu(y) : y).to(type), exact(gradient).mm(exact(weight)).to(type),
            exact(gradient).t().mm(exact(x)).to(type)};
  }
};

TEST_CASE("the products of a linear layer on a CPU are the exact sums") {
  for (const auto type : {at::kFloat, at::kBFloat16}) {
    for (const std::int64_t batch : {0, 1, 7, 64, 100}) {
      for (const auto& [in, out] :
           {std::array<std::int64_t, 2>{1, 1}, {5, 33}, {33, 10}, {200, 120}, {130, 64}}) {
        CAPTURE(type, batch, in, out);
        const Layer layer(batch, in, out, type);
        for (const bool relu : {false, true}) CHECK(layer.products(relu) == layer.expected(relu));
      }
    }
  }
}

TEST_CASE("products do not depend on the number of threads") {
  const int before = at::get_num_threads();
  for (const auto type : {at::kFloat, at::kBFloat16}) {
    const Layer layer(64, 784, 1024, type);
    at::set_num_threads(1);
    const Products one = layer.products(false);
    at::set_num_threads(3);
    const Products three = layer.products(false);
    at::set_num_threads(before);
    CHECK(one == three);
  }
}

TEST_CASE("results of a sample do not depend on other samples") {
  for (const auto type : {at::kFloat, at::kBFloat16}) {
    const at::Tensor x = at::randn({150, 99}).to(type);
    const at::Tensor weight = at::randn({40, 99}).to(type);
    const at::Tensor bias = at::randn({40}).to(type);
    const at::Tensor gradient = at::randn({150, 40}).to(type);
    const at::Tensor all = host_linear(x, weight, bias, false);
    const at::Tensor all_of_x = host_linear_input_gradient(gradient, weight);
    for (const std::int64_t sample : {0, 33, 69, 149}) {
      const at::Tensor alone = host_linear(x.narrow(0, sample, 1), weight, bias, false);
      const at::Tensor of_x = host_linear_input_gradient(gradient.narrow(0, sample, 1), weight);
      CHECK(alone.allclose(all.narrow(0, sample, 1), 0.01, 0.01));
      CHECK(of_x.allclose(all_of_x.narrow(0, sample, 1), 0.01, 0.01));
      if (!has_own_host_linear()) continue;
      CHECK(alone.equal(all.narrow(0, sample, 1)));
      CHECK(of_x.equal(all_of_x.narrow(0, sample, 1)));
    }
  }
}

TEST_CASE("a ReLU keeps NaN and has no negative zero") {
  for (const auto type : {at::kFloat, at::kBFloat16}) {
    Layer layer(2, 3, 40, type);
    layer.x[1][2] = -std::numeric_limits<float>::quiet_NaN();
    const at::Tensor y = host_linear(layer.x, layer.weight, layer.bias, true);
    CHECK(y[1].isnan().all().item<bool>());
    CHECK(!y[0].isnan().any().item<bool>());
    CHECK(!y[0].signbit().any().item<bool>());
  }
}

TEST_CASE("factors need not be contiguous") {
  for (const auto type : {at::kFloat, at::kBFloat16}) {
    const Layer layer(20, 30, 40, type);
    Layer strided = layer;
    strided.x = layer.x.t().contiguous().t();
    strided.weight = layer.weight.t().contiguous().t();
    strided.gradient = layer.gradient.t().contiguous().t();
    CHECK(strided.products(true) == layer.products(true));
  }
}

TEST_CASE("the error of the hyperbolic tangent is below 2.5 ulp") {
  const float infinity = std::numeric_limits<float>::infinity();
  const at::Tensor x =
      at::cat({at::linspace(-12, 12, 200'001), at::linspace(-1e-3, 1e-3, 2001),
               at::tensor({0.0F, -0.0F, 1e-30F, -1e-30F, 100.0F, infinity, -infinity, 0.625F})});
  const at::Tensor found = x.clone();
  host_tanh(found);
  const at::Tensor exact = x.to(at::kDouble).tanh();
  const at::Tensor ulps =
      (found.to(at::kDouble) - exact).abs() / exact.abs().clamp_min(1e-37).mul(std::pow(2.0, -23));
  CHECK(ulps.max().item<double>() < 2.5);
  CHECK(found.abs().le(1).all().item<bool>());
  CHECK(found.signbit().equal(x.signbit()));
  const at::Tensor nothing = at::tensor({std::nanf("")});
  host_tanh(nothing);
  CHECK(nothing.isnan().item<bool>());
}

TEST_CASE("in bf16 the hyperbolic tangent agrees with LibTorch") {
  const at::Tensor x = at::linspace(-5, 5, 40'003).to(at::kBFloat16);
  const at::Tensor found = x.clone();
  host_tanh(found);
  const at::Tensor differences = (found - at::tanh(x)).abs().to(at::kFloat);
  CHECK(differences.max().item<float>() <= std::pow(2.0F, -8));  // the last digit, and that
  CHECK(differences.gt(0).sum().item<std::int64_t>() < 40);      // hardly ever
}

at::Tensor derivative(LinearFunction function, const at::Tensor& y, const at::Tensor& dy) {
  const at::Tensor exact = dy.to(at::kDouble);
  return (function == LinearFunction::kRelu ? at::threshold_backward(exact, y.to(at::kDouble), 0)
                                            : exact * (1 - y.to(at::kDouble).square()))
      .to(y.scalar_type());
}

TEST_CASE("gradients of a linear layer's activation and bias agree with LibTorch") {
  const auto function = GENERATE(LinearFunction::kRelu, LinearFunction::kTanh);
  for (const auto type : {at::kFloat, at::kBFloat16}) {
    for (const auto& [rows, channels] :
         {std::pair{0, 7}, std::pair{1, 1}, std::pair{64, 1024}, std::pair{33, 1500}}) {
      CAPTURE(rows, channels, type, function == LinearFunction::kTanh);
      const at::Tensor z = at::randn({rows, channels}).to(type);
      const at::Tensor y = function == LinearFunction::kRelu ? at::relu(z) : at::tanh(z);
      const at::Tensor dy = at::randn({rows, channels}).to(type);
      const at::Tensor linear = at::empty_like(y);
      const at::Tensor place = at::empty({channels}, y.options());
      const at::Tensor bias = host_linear_activation_gradients(function, y, dy, linear);
      kernels::Agreement agreement;
      if (rows > 0) agreement.add("gradient", linear, derivative(function, y, dy), type);
      agreement.add("bias", bias, linear.to(at::kDouble).sum(0), type);
      CHECK(agreement.difference() == "");
      CHECK(bias.scalar_type() == type);
      CHECK(host_linear_activation_gradients(function, y, dy, linear, place).equal(bias));
      CHECK(place.equal(bias));
    }
  }
}

TEST_CASE("a linear layer with an activation trains on a CPU as with LibTorch's operations") {
  for (const auto function : {LinearFunction::kRelu, LinearFunction::kTanh}) {
    for (const auto type : {at::kFloat, at::kBFloat16}) {
      auto layer = std::make_shared<torch::nn::LinearImpl>(40, 30);
      layer->to(type);
      GradientPlaces places;
      const auto gradients_of = [&](bool fused) {
        layer->zero_grad();
        at::Tensor x = at::linspace(-1, 1, 12 * 40).view({12, 40}).to(type).requires_grad_();
        at::Tensor y = fused ? linear_activation(*layer, function, x, places)
                       : function == LinearFunction::kRelu ? at::relu(layer->forward(x))
                                                           : at::tanh(layer->forward(x));
        y.square().sum().backward();
        return std::vector{y.detach(), x.grad(), layer->weight.grad().clone(),
                           layer->bias.grad().clone()};
      };
      const auto expected = gradients_of(false);
      const auto found = gradients_of(true);
      const double tolerance = type == at::kFloat ? 1e-5 : 2e-2;
      for (std::size_t i = 0; i < expected.size(); ++i) {
        CAPTURE(i, type);
        const double largest = expected[i].abs().max().item<double>();
        CHECK((found[i] - expected[i]).abs().max().item<double>() <= tolerance * largest);
      }
    }
  }
}

TEST_CASE("LibTorch refuses rows that do not fit the layer") {
  auto layer = std::make_shared<torch::nn::LinearImpl>(40, 30);
  GradientPlaces places;
  for (const std::int64_t width : {39, 41}) {
    const at::Tensor x = at::zeros({2, width});
    CHECK_THROWS_AS(linear_activation(*layer, std::nullopt, x, places), c10::Error);
    CHECK_THROWS_AS(linear_activation(*layer, LinearFunction::kTanh, x, places), c10::Error);
  }
}

TEST_CASE("a linear layer writes the gradient of its weight to the destination buffer, once") {
  for (const auto type : {at::kFloat, at::kBFloat16}) {
    auto layer = std::make_shared<torch::nn::LinearImpl>(50, 33);
    layer->to(type);
    GradientPlaces places;
    const at::Tensor x = at::linspace(-1, 1, 12 * 50).view({12, 50}).to(type);
    const auto forward = [&] { return linear_activation(*layer, std::nullopt, x, places); };
    const auto gradient = [&] {
      layer->zero_grad();
      forward().square().sum().backward();
      return layer->weight.grad();
    };
    const at::Tensor expected = gradient().clone();
    const at::Tensor rows = at::zeros({2, 50 * 33 + 16}, type);
    const at::Tensor place = rows[1].narrow(0, 8, 50 * 33).view({33, 50});
    places.set(layer->weight, place);
    {
      const at::NoGradGuard no_grad;  // an evaluation, which has no gradients
      (void)forward();
    }
    const at::Tensor found = gradient();
    CHECK(found.equal(expected));
    CHECK(rows.count_nonzero().item<std::int64_t>() <= 50 * 33);
    if (has_own_host_linear()) {
      CHECK(found.const_data_ptr() == place.const_data_ptr());
      CHECK(place.equal(expected));
    }
    CHECK(gradient().const_data_ptr() != place.const_data_ptr());
    CHECK(gradient().equal(expected));
  }
}

}  // namespace
}  // namespace mnist_train::models
