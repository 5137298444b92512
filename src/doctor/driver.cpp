#include "doctor/driver.h"

#include <array>
#include <filesystem>
#include <sstream>

#include "base/shared_library.h"
#include "base/system.h"

namespace mnist_train::doctor {

namespace {

namespace fs = std::filesystem;

/// The driver's C functions, as far as they are needed here. Each returns 0 for success.
class DriverLibrary : public SharedLibrary {
 public:
  DriverLibrary() : SharedLibrary("libcuda.so.1") {}

  /// Returns what the function returns, or -1 where the library lacks it.
  template <typename... Arguments>
  int call(const char* name, Arguments... arguments) const {
    const auto function = find<int(Arguments...)>(name);
    return function == nullptr ? -1 : function(arguments...);
  }

  std::string error_text(int code) const {
    const char* text = nullptr;
    call("cuGetErrorString", code, &text);
    return text == nullptr ? "error " + std::to_string(code) : text;
  }
};

/// Reads the version out of a line such as "NVRM version: NVIDIA UNIX x86_64 Kernel Module
/// 580.65.06  Sun Jul 27 …".
std::string kernel_version() {
  if (const auto version = first_line("/sys/module/nvidia/version")) return *version;
  std::istringstream words(first_line("/proc/driver/nvidia/version").value_or(""));
  for (std::string word; words >> word;) {
    if (word.find_first_not_of("0123456789.") == std::string::npos) return word;
  }
  return "";
}

int gpus_on_bus() {
  int count = 0;
  std::error_code error;
  for (const auto& device : fs::directory_iterator("/sys/bus/pci/devices", error)) {
    const std::string type = first_line(device.path() / "class").value_or("");
    if (first_line(device.path() / "vendor") == "0x10de" && type.starts_with("0x03")) ++count;
  }
  return count;
}

Gpu read_gpu(const DriverLibrary& library, int device) {
  constexpr int kComputeMajor = 75;  // CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR
  constexpr int kComputeMinor = 76;
  Gpu gpu;
  std::array<char, 256> name{};
  if (library.call("cuDeviceGetName", name.data(), static_cast<int>(name.size()), device) == 0) {
    gpu.name = name.data();
  }
  std::size_t bytes = 0;
  if (library.call("cuDeviceTotalMem_v2", &bytes, device) == 0) gpu.memory_bytes = bytes;
  library.call("cuDeviceGetAttribute", &gpu.compute_major, kComputeMajor, device);
  library.call("cuDeviceGetAttribute", &gpu.compute_minor, kComputeMinor, device);
  return gpu;
}

void read_devices(const DriverLibrary& library, Driver& driver) {
  int count = 0;
  if (const int code = library.call("cuDeviceGetCount", &count); code != 0) {
    driver.error = library.error_text(code);
    return;
  }
  std::vector<int> devices(static_cast<std::size_t>(count));
  for (int index = 0; index < count; ++index) {
    int& device = devices[static_cast<std::size_t>(index)];
    library.call("cuDeviceGet", &device, index);
    driver.gpus.push_back(read_gpu(library, device));
  }
  for (int one = 0; one < count; ++one) {
    for (int other = one + 1; other < count; ++other) {
      int possible = 0;
      library.call("cuDeviceCanAccessPeer", &possible, devices[static_cast<std::size_t>(one)],
                   devices[static_cast<std::size_t>(other)]);
      if (possible == 0) driver.without_peer_access.emplace_back(one, other);
    }
  }
}

}  // namespace

Driver ask_driver() {
  Driver driver;
  driver.kernel_version = kernel_version();
  driver.gpus_on_bus = gpus_on_bus();
  const DriverLibrary library;
  driver.library = library.loaded();
  if (!driver.library) return driver;
  library.call("cuDriverGetVersion", &driver.cuda_version);
  if (const int code = library.call("cuInit", 0U); code != 0) {
    driver.error = library.error_text(code);
    return driver;
  }
  read_devices(library, driver);
  return driver;
}

}  // namespace mnist_train::doctor
