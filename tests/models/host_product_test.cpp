#include "models/host_product.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/allclose.h>
#include <ATen/ops/randn.h>

#include <array>

#include "support/catch.h"

namespace mnist_train::models {
namespace {

TEST_CASE("a product on a CPU takes factors as they lie in memory") {
  constexpr std::int64_t kRows = 33;
  constexpr std::int64_t kColumns = 70;
  for (const auto type : {at::kFloat, at::kBFloat16}) {
    for (const std::int64_t inner : {1, 24, 999}) {
      const std::array<at::Tensor, 2> lefts{at::randn({kRows, inner}).to(type),
                                            at::randn({inner, kRows}).to(type).t()};
      const std::array<at::Tensor, 2> rights{at::randn({kColumns, inner}).to(type),
                                             at::randn({inner, kColumns}).to(type).t()};
      const at::Tensor row = at::randn({kColumns}).to(type);
      for (const at::Tensor& left : lefts) {
        for (const at::Tensor& right : rights) {
          CAPTURE(type, inner, left.is_contiguous(), right.is_contiguous());
          const at::Tensor exact = left.to(at::kDouble).mm(right.to(at::kDouble).t());
          const double rounding = type == at::kFloat ? 1e-5 : 2e-2;
          const double tolerance = rounding * exact.abs().max().item<double>();
          const at::Tensor product = host_product(left, right);
          CHECK(product.scalar_type() == type);
          CHECK(product.is_contiguous());
          CHECK(at::allclose(product.to(at::kDouble), exact, 0, tolerance));
          const at::Tensor sum = host_product(left, right, row);
          CHECK(at::allclose(sum.to(at::kDouble), exact + row.to(at::kDouble), 0, tolerance * 2));
        }
      }
    }
  }
}

TEST_CASE("a product of no rows has none") {
  CHECK(host_product(at::randn({0, 5}), at::randn({3, 5}), at::randn({3})).size(0) == 0);
}

}  // namespace
}  // namespace mnist_train::models
