#include "accelerator/device.h"

#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <sys/resource.h>

#include <algorithm>

#include "accelerator/cuda_module.h"

namespace mnist_train::accelerator {

void synchronize(at::Device device) {
  if (device.is_cpu()) return;
  c10::impl::getDeviceGuardImpl(device.type())->synchronizeDevice(device.index());
}

std::int64_t peak_memory_bytes(at::Device device) {
  rusage usage{};
  ::getrusage(RUSAGE_SELF, &usage);
  const std::int64_t host_bytes = usage.ru_maxrss * 1024;
  if (device.is_cpu()) return host_bytes;
  return std::max(host_bytes, cuda_module().peak_memory_bytes(device.index()));
}

bool computes_bfloat16(at::Device device) {
  if (!device.is_cpu()) return cuda_module().computes_bfloat16(device.index());
#if defined(__x86_64__)
  return __builtin_cpu_supports("avx512bf16") != 0;
#else
  return false;
#endif
}

std::string device_name(at::Device device) {
  return device.is_cpu() ? "" : cuda_module().device_name(device.index());
}

std::unique_ptr<DeviceGraph> make_graph(at::Device device) {
  return device.is_cpu() ? nullptr : cuda_module().make_graph();
}

}  // namespace mnist_train::accelerator
