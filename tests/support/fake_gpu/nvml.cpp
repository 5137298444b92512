/// The NVML functions with which LibTorch queries devices, and their types, because NVIDIA's wheels
/// do not include NVML's header.
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <string_view>

#include "support/fake_gpu/device.h"
#include "support/fake_gpu/settings.h"

namespace mnist_train::fake_gpu {

namespace {

constexpr int kSuccess = 0;          // NVML_SUCCESS
constexpr int kInvalidArgument = 2;  // NVML_ERROR_INVALID_ARGUMENT
constexpr int kNotFound = 6;         // NVML_ERROR_NOT_FOUND
constexpr int kTooSmall = 7;         // NVML_ERROR_INSUFFICIENT_SIZE

/// The opaque nvmlDevice_t: the number of the device, starting at 1.
using Device = std::uintptr_t;

}  // namespace

extern "C" {

int nvmlInit_v2() { return kSuccess; }

int nvmlSystemGetDriverVersion(char* version, unsigned length) {
  constexpr std::string_view kVersion = "580.65.06";
  if (length <= kVersion.size()) return kTooSmall;
  std::memcpy(version, kVersion.data(), kVersion.size() + 1);
  return kSuccess;
}

int nvmlSystemGetCudaDriverVersion_v2(int* version) {
  *version = CUDART_VERSION;
  return kSuccess;
}

/// Finds a device by the result of cudaDeviceGetPCIBusId among all devices of the machine, because
/// NVML ignores CUDA_VISIBLE_DEVICES.
int nvmlDeviceGetHandleByPciBusId_v2(const char* bus_id, Device* device) {
  const char* colon = std::strchr(bus_id, ':');  // after the PCI domain
  if (colon == nullptr) return kInvalidArgument;
  const unsigned long bus = std::strtoul(colon + 1, nullptr, 16);
  if (bus == 0 || bus > static_cast<unsigned long>(settings().count)) return kNotFound;
  *device = bus;
  return kSuccess;
}

int nvmlDeviceGetComputeRunningProcesses(Device, unsigned* count, void*) {
  *count = 0;
  return kSuccess;
}

}  // extern "C"

}  // namespace mnist_train::fake_gpu
