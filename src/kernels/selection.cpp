#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <map>
#include <sstream>
#include <utility>

#include "base/error.h"
#include "kernels/launch.h"
#include "kernels/operations.h"

namespace mnist_train::kernels {

namespace {

/// A row of the operation table.
struct Row {
  const char* name;
  void (*check)(Agreement& agreement);
};

/// In the order of `Operation`.
constexpr std::array<Row, kOperations> kTable{{
    {"softmax_loss", &check_softmax_loss},
    {"optimizer_update", &check_optimizer_update},
    {"relu_max_pool", &check_relu_max_pool},
    {"gather_batch", &check_gather_batch},
    {"batch_norm", &check_batch_norm},
    {"linear_activation", &check_linear_activation},
    {"depthwise_convolution", &check_depthwise},
}};

/// Kernels of this process, which computes on one device.
struct InUse {
  std::unique_ptr<const accelerator::KernelModule> compiled;
  at::Device device = at::kCPU;
  std::map<std::string, std::unique_ptr<accelerator::DeviceKernel>> by_name;
  at::Tensor arrived;  // [kArrivedBlocks] i32
  std::array<Selected, kOperations> selected;
};

InUse& in_use() {
  static InUse in_use;
  return in_use;
}

Selected& selected_for(Operation operation) {
  return in_use().selected[static_cast<std::size_t>(operation)];
}

/// Throws Error(kRunFailed) if the GPU no longer works, for example after an illegal memory access.
void require_usable(at::Device device, const Row& row) {
  try {
    at::zeros({1}, at::TensorOptions(at::kInt).device(device));
    accelerator::synchronize(device);
  } catch (const std::exception& error) {
    throw Error(ExitCode::kRunFailed,
                std::string("the GPU failed in the check of the kernels for ") + row.name +
                    "; if it is healthy, set \"gpu_kernels\" to \"off\" to train without custom "
                    "kernels: " +
                    short_message(error));
  }
}

/// Returns why an operation's kernels cannot be used, or an empty string.
std::string reason_against(const Row& row, at::Device device) {
  try {
    Agreement agreement(device);
    row.check(agreement);
    return agreement.difference();
  } catch (const std::exception& error) {
    require_usable(device, row);
    return short_message(error);
  }
}

}  // namespace

void prepare(at::Device device) {
  if (device.is_cpu()) return use(device, nullptr, "these kernels are for GPUs");
  try {
    use(device, accelerator::cuda_module().compile_kernels(source()));
  } catch (const std::exception& error) {
    use(device, nullptr, short_message(error));
  }
}

void use(at::Device device, std::unique_ptr<const accelerator::KernelModule> compiled,
         const std::string& reason_for_none) {
  const at::NoGradGuard no_grad;
  InUse& now = in_use();
  now.by_name.clear();
  now.compiled = std::move(compiled);
  now.device = device;
  for (std::size_t i = 0; i < kOperations; ++i) {
    now.selected[i] = {kTable[i].name, /*is_own=*/false, reason_for_none};
  }
  if (!now.compiled) return;
  now.arrived = at::zeros({kArrivedBlocks}, at::TensorOptions(at::kInt).device(device));
  for (std::size_t i = 0; i < kOperations; ++i) {
    now.selected[i].reason = reason_against(kTable[i], device);
    now.selected[i].is_own = now.selected[i].reason.empty();
  }
}

const std::array<Selected, kOperations>& selected() { return in_use().selected; }

void reject(Operation operation, const std::string& reason) {
  Selected& rejected = selected_for(operation);
  rejected.is_own = false;
  rejected.reason = reason;
}

bool is_used(Operation operation, at::Device device) {
  return selected_for(operation).is_own && in_use().device == device;
}

bool is_any_used(at::Device device) {
  const auto& selected = in_use().selected;
  return in_use().device == device && std::ranges::any_of(selected, &Selected::is_own);
}

const accelerator::DeviceKernel& kernel(const std::string& name) {
  auto& by_name = in_use().by_name;
  const auto found = by_name.find(name);
  if (found != by_name.end()) return *found->second;
  return *by_name.emplace(name, in_use().compiled->find(name)).first->second;
}

unsigned* arrived_blocks() { return static_cast<unsigned*>(in_use().arrived.data_ptr()); }

void Agreement::add(const char* name, const at::Tensor& result, const at::Tensor& expected,
                    at::ScalarType type) {
  if (!difference_.empty()) return;
  // Kernels sum in a different order and use fused multiply-adds.
  const double tolerance = type == at::kBFloat16 ? 1.0 / 128 : 1e-5;
  const at::Tensor computed = accelerator::to_host(result).to(at::kDouble).contiguous();
  const at::Tensor wanted = expected.to(at::kDouble).contiguous();
  const double largest = wanted.abs().max().item<double>();
  const double off = (computed - wanted).abs().max().item<double>();
  if (off <= tolerance * (largest > 0 ? largest : 1)) return;  // false for NaN
  std::ostringstream text;
  text << name << " in " << c10::toString(type) << " differ by " << off << "; the largest value is "
       << largest;
  difference_ = text.str();
}

at::Tensor known_values(at::IntArrayRef sizes) {
  const at::Tensor numbers = at::arange(c10::multiply_integers(sizes), at::kDouble);
  return (numbers * 12.9898).sin_().mul_(43758.5453).frac_().mul_(0.99).to(at::kFloat).view(sizes);
}

}  // namespace mnist_train::kernels
