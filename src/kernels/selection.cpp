#include "kernels/selection.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/zeros.h>
#include <spdlog/spdlog.h>

#include <map>
#include <string>
#include <utility>

#include "accelerator/cuda_module.h"
#include "accelerator/device.h"
#include "base/error.h"
#include "kernels/batch_norm.h"
#include "kernels/gather_batch.h"
#include "kernels/launch.h"
#include "kernels/linear_activation.h"
#include "kernels/optimizer_update.h"
#include "kernels/relu_max_pool.h"
#include "kernels/softmax_loss.h"
#include "kernels/source.h"

namespace mnist_train::kernels {

namespace {

/// An operation's row of the table.
struct Row {
  Operation operation;
  const char* name;
  std::string (*check)(at::Device device);
};

constexpr std::array<Row, kOperations> kTable{{
    {Operation::kSoftmaxLoss, "softmax_loss", &check_softmax_loss},
    {Operation::kOptimizerUpdate, "optimizer_update", &check_optimizer_update},
    {Operation::kReluMaxPool, "relu_max_pool", &check_relu_max_pool},
    {Operation::kGatherBatch, "gather_batch", &check_gather_batch},
    {Operation::kBatchNorm, "batch_norm", &check_batch_norm},
    {Operation::kLinearActivation, "linear_activation", &check_linear_activation},
}};

constexpr bool is_in_order() {
  for (std::size_t i = 0; i < kOperations; ++i) {
    if (static_cast<std::size_t>(kTable[i].operation) != i) return false;
  }
  return true;
}
static_assert(is_in_order(), "a row's place is the value of its operation");

/// The kernels of this process, which computes on one device.
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

std::size_t index_of(Operation operation) { return static_cast<std::size_t>(operation); }

void reject_all(const std::string& reason) {
  for (std::size_t i = 0; i < kOperations; ++i) {
    in_use().selected[i] = {kTable[i].name, /*is_own=*/false, reason};
  }
}

/// Throws Error(kRunFailed) where the GPU computes nothing any more, as after an access to memory
/// that is not there.
void require_usable(at::Device device, const Row& row) {
  try {
    at::zeros({1}, at::TensorOptions(at::kInt).device(device));
    accelerator::synchronize(device);
  } catch (const PeerError&) {
    throw;  // the GPU does not answer
  } catch (const std::exception& error) {
    throw Error(ExitCode::kRunFailed,
                std::string("the GPU failed while the kernels of ") + row.name +
                    " were checked; if it is healthy, \"gpu_kernels\": \"off\" trains without "
                    "kernels of this program's own: " +
                    short_message(error));
  }
}

std::string check(const Row& row, at::Device device) {
  try {
    return row.check(device);
  } catch (const PeerError&) {
    throw;
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
  } catch (const PeerError&) {
    throw;
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
  reject_all(reason_for_none);
  if (!now.compiled) return;
  now.arrived = at::zeros({kArrivedBlocks}, at::TensorOptions(at::kInt).device(device));
  for (std::size_t i = 0; i < kOperations; ++i) {
    now.selected[i].reason = check(kTable[i], device);
    now.selected[i].is_own = now.selected[i].reason.empty();
  }
}

const std::array<Selected, kOperations>& selected() { return in_use().selected; }

void reject(Operation operation, const std::string& reason) {
  Selected& rejected = in_use().selected[index_of(operation)];
  rejected.is_own = false;
  rejected.reason = reason;
}

bool is_used(Operation operation, at::Device device) {
  const InUse& now = in_use();
  return now.selected[index_of(operation)].is_own && now.device == device;
}

const accelerator::DeviceKernel& kernel(const std::string& name) {
  auto& by_name = in_use().by_name;
  const auto found = by_name.find(name);
  if (found != by_name.end()) return *found->second;
  return *by_name.emplace(name, in_use().compiled->find(name)).first->second;
}

unsigned* arrived_blocks() { return static_cast<unsigned*>(in_use().arrived.data_ptr()); }

std::string name_for(const char* name, at::ScalarType type) {
  return std::string(name) + (type == at::kBFloat16 ? "_bf16" : "_f32");
}

}  // namespace mnist_train::kernels
