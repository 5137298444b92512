#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <cstddef>
#include <memory>
#include <string>

#include "accelerator/device_kernel.h"

namespace mnist_train::kernels {

/// A computation that a custom kernel does instead of several operations of LibTorch. The file of
/// its name launches and checks it; selection.cpp has the table of all.
enum class Operation {
  kSoftmaxLoss,
  kOptimizerUpdate,
  kReluMaxPool,
  kGatherBatch,
  kBatchNorm,
  kLinearActivation
};

inline constexpr std::size_t kOperations = 6;

/// The implementation of an operation on the GPU of this process.
struct Selected {
  const char* name;         // of the operation, such as "softmax_loss"
  bool is_own = false;      // the custom kernel, not LibTorch's operations
  std::string reason = {};  // why LibTorch computes it; empty for the kernel
};

/// Compiles the kernels for a GPU and uses those that agree with LibTorch's operations on small
/// known cases. LibTorch's operations stay selected if NVRTC is missing or a kernel differs. Throws
/// PeerError if the GPU does not answer, and Error(kRunFailed) if a check broke it. Must be called
/// before the first step; takes some seconds of a core if the user's cache lacks the kernels.
void prepare(at::Device device);

/// The same with compiled kernels. Null: uses none, for this reason.
void use(at::Device device, std::unique_ptr<const accelerator::KernelModule> compiled,
         const std::string& reason_for_none = {});

/// Returns the implementation of each operation, in the order of `Operation`.
const std::array<Selected, kOperations>& selected();

/// Selects LibTorch's operations from now on, and keeps the reason.
void reject(Operation operation, const std::string& reason);

/// Returns whether the kernel computes the operation for tensors on the device.
bool is_used(Operation operation, at::Device device);

}  // namespace mnist_train::kernels
