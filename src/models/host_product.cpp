#include "models/host_product.h"

#include <ATen/Context.h>
#include <ATen/core/List.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/linear.h>

#include <optional>
#include <string_view>

namespace mnist_train::models {

namespace {

/// A linear layer by oneDNN, with what is behind it; it has no function in LibTorch's headers.
using LinearPointwise = at::Tensor(const at::Tensor& x, const at::Tensor& weight,
                                   const std::optional<at::Tensor>& bias, std::string_view behind,
                                   c10::List<std::optional<at::Scalar>> scalars,
                                   std::optional<std::string_view> algorithm);

std::optional<c10::TypedOperatorHandle<LinearPointwise>> find_one_dnn_linear() {
  const auto found = c10::Dispatcher::singleton().findSchema({"mkldnn::_linear_pointwise", ""});
  if (!found || !at::globalContext().hasMKLDNN()) return std::nullopt;
  return found->typed<LinearPointwise>();
}

}  // namespace

at::Tensor host_product(const at::Tensor& left, const at::Tensor& right, const at::Tensor& row) {
  static const auto kOneDnnLinear = find_one_dnn_linear();
  const bool by_one_dnn = kOneDnnLinear && left.scalar_type() == at::kFloat && left.numel() > 0 &&
                          right.numel() > 0 && at::globalContext().userEnabledMkldnn();
  const std::optional<at::Tensor> bias = row.defined() ? std::optional(row) : std::nullopt;
  if (!by_one_dnn) return at::linear(left, right, bias);
  return kOneDnnLinear->call(left, right, bias, "none", c10::List<std::optional<at::Scalar>>(), "");
}

}  // namespace mnist_train::models
