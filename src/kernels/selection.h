#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <cstddef>
#include <memory>
#include <string>

#include "accelerator/device_kernel.h"

namespace mnist_train::kernels {

/// A computation that a kernel of this program's own does in the place of several of LibTorch's.
/// Its launch, and its check, is in the file of its name; selection.cpp has the table of all.
enum class Operation {
  kSoftmaxLoss,
  kOptimizerUpdate,
  kReluMaxPool,
  kGatherBatch,
  kBatchNorm,
  kLinearActivation
};

inline constexpr std::size_t kOperations = 6;

/// What computes an operation on the GPU of this process.
struct Selected {
  const char* name;         // of the operation, such as "softmax_loss"
  bool is_own = false;      // the kernel, not LibTorch's operations
  std::string reason = {};  // why not, unless it is
};

/// Compiles the kernels for a GPU and uses for tensors there those that compute a small known case
/// as LibTorch's operations do on the host. Where NVRTC is missing or a kernel differs, LibTorch's
/// operations stay selected. Throws PeerError where the GPU does not answer, and Error(kRunFailed)
/// where a check broke it. Must be called before the first step; takes some seconds of a core when
/// the user's cache does not have the kernels yet.
void prepare(at::Device device);

/// Does the same with kernels that are compiled already. Null: uses none, for this reason.
void use(at::Device device, std::unique_ptr<const accelerator::KernelModule> compiled,
         const std::string& reason_for_none = {});

/// Returns what computes each operation, in the order of `Operation`.
const std::array<Selected, kOperations>& selected();

/// Lets LibTorch's operations compute the operation from now on, and keeps the reason.
void reject(Operation operation, const std::string& reason);

/// Returns whether the kernel computes the operation for tensors on the device.
bool is_used(Operation operation, at::Device device);

}  // namespace mnist_train::kernels
