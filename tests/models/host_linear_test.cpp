#include "models/host_linear.h"

#include <ATen/Parallel.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/relu.h>
#include <ATen/ops/zeros.h>

#include <array>
#include <limits>

#include "support/catch.h"

namespace mnist_train::models {
namespace {

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

}  // namespace
}  // namespace mnist_train::models
