#include "models/multiply_adds.h"

#include <ATen/core/ivalue.h>
#include <ATen/record_function.h>
#include <c10/util/ScopeExit.h>

#include <memory>
#include <string_view>
#include <utility>

namespace mnist_train::models {

namespace {

thread_local std::int64_t counted = 0;

/// What one call of an operator costs, as far as its inputs tell.
struct OperatorCall : at::ObserverContext {
  std::int64_t for_each_output = 0;  // multiply-adds for each number that it computes
};

std::int64_t per_output_channel(const at::Tensor& weight) {
  return weight.size(0) > 0 ? weight.numel() / weight.size(0) : 0;
}

/// Matrix products, and which of their inputs is the first factor.
constexpr std::pair<std::string_view, std::size_t> kProducts[] = {
    {"aten::mm", 0}, {"aten::addmm", 1}, {"aten::bmm", 0},
    {"aten::mv", 0}, {"aten::addmv", 1}, {"aten::baddbmm", 1}};

// Traced scripts call it directly, all others by way of aten::convolution.
constexpr std::string_view kConvolution = "aten::_convolution";
constexpr std::string_view kAttentionOnCpus = "aten::_scaled_dot_product_flash_attention_for_cpu";

std::unique_ptr<at::ObserverContext> begin(const at::RecordFunction& called) {
  const std::string_view name = called.name();
  // TorchScript's interpreter shows its whole stack, on which the arguments lie at the end.
  const auto inputs = called.inputs().slice(called.inputs().size() - called.num_inputs());
  auto call = std::make_unique<OperatorCall>();
  for (const auto& [product, factor] : kProducts) {
    if (name == product) call->for_each_output = inputs[factor].toTensor().size(-1);
  }
  if (name == kConvolution) {
    const at::Tensor& image = inputs[0].toTensor();
    const at::Tensor& weight = inputs[1].toTensor();
    const bool transposed = inputs[6].toBool();
    if (transposed) {
      counted += image.numel() * per_output_channel(weight);  // of each number that comes in
    } else {
      call->for_each_output = per_output_channel(weight);
    }
  } else if (name == kAttentionOnCpus) {
    const at::Tensor& query = inputs[0].toTensor();
    const at::Tensor& key = inputs[1].toTensor();
    const at::Tensor& value = inputs[2].toTensor();
    const std::int64_t queries = query.numel() / query.size(-1);
    counted += queries * key.size(-2) * (query.size(-1) + value.size(-1));
  }
  return call;
}

void end(const at::RecordFunction& called, at::ObserverContext* context) {
  const auto* call = static_cast<const OperatorCall*>(context);
  const bool computed = call != nullptr && !called.outputs().empty();  // not where it threw
  if (computed && call->for_each_output > 0) {
    counted += call->for_each_output * called.outputs().back().toTensor().numel();
  }
}

}  // namespace

std::int64_t count_multiply_adds(const std::function<void()>& compute) {
  counted = 0;
  const at::CallbackHandle handle =
      at::addThreadLocalCallback(at::RecordFunctionCallback(begin, end)
                                     .needsInputs(true)
                                     .needsOutputs(true)
                                     .scopes({at::RecordScope::FUNCTION}));
  const auto removal = c10::make_scope_exit([handle] { at::removeCallback(handle); });
  compute();
  return counted;
}

}  // namespace mnist_train::models
