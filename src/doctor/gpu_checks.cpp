#include <spdlog/fmt/fmt.h>

#include <array>
#include <charconv>
#include <cstring>
#include <filesystem>

#include "base/system.h"
#include "doctor/doctor.h"

namespace mnist_train::doctor {

namespace {

namespace fs = std::filesystem;

/// The driver's C functions. Each returns 0 on success.
class DriverLibrary : public SharedLibrary {
 public:
  DriverLibrary() : SharedLibrary("libcuda.so.1") {}

  /// Returns the function's result, or -1 if the library does not have the function.
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

/// Returns the driver's version from NVML, which works even in sandboxes that hide the kernel's
/// files; empty without NVML.
std::string version_by_nvml() {
  const SharedLibrary library("libnvidia-ml.so.1");
  const auto init = library.find<int()>("nvmlInit_v2");
  const auto version = library.find<int(char*, unsigned)>("nvmlSystemGetDriverVersion");
  std::array<char, 80> text{};
  if (init == nullptr || version == nullptr || init() != 0) return "";
  return version(text.data(), text.size()) == 0 ? text.data() : "";
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
  library.call("cuDeviceGetName", name.data(), static_cast<int>(name.size()), device);
  gpu.name = name.data();
  library.call("cuDeviceTotalMem_v2", &gpu.memory_bytes, device);
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
  for (int index = 0; index < count; ++index) {
    int device = 0;
    library.call("cuDeviceGet", &device, index);
    driver.gpus.push_back(read_gpu(library, device));
  }
}

/// Explains why the driver reports no GPU.
Finding explain_no_gpu(const Driver& driver) {
  const auto finding = [](Verdict verdict, const std::string& text, const char* remedy) {
    return Finding{"GPU", verdict, text + "; runs use the CPUs", remedy};
  };
  const auto hidden = environment_variable("CUDA_VISIBLE_DEVICES");
  if (!driver.error.empty() && (driver.gpus_on_bus > 0 || !driver.kernel_version.empty())) {
    return finding(Verdict::kWarning, "the NVIDIA driver does not work: " + driver.error,
                   "see dmesg and nvidia-smi; after a driver update, reboot");
  }
  if (driver.library && driver.error.empty() && hidden) {
    return finding(Verdict::kNote, "CUDA_VISIBLE_DEVICES=\"" + *hidden + "\" hides all GPUs", "");
  }
  if (!driver.kernel_version.empty() && !driver.library) {
    return finding(Verdict::kWarning,
                   "driver " + driver.kernel_version + " is loaded, but libcuda.so.1 is not found",
                   "in a container: start it with --gpus all (NVIDIA Container Toolkit); elsewhere "
                   "install the driver's user-space package (libcuda1)");
  }
  if (driver.gpus_on_bus > 0 && driver.kernel_version.empty()) {
    return finding(Verdict::kWarning,
                   std::to_string(driver.gpus_on_bus) + " on the PCI bus, but no NVIDIA driver",
                   "install NVIDIA's driver (580 or newer for CUDA 13) and reboot");
  }
  return finding(Verdict::kNote, "none", "");
}

Finding check_driver(const Driver& driver, const BuildInfo& build) {
  constexpr int kVersionStep = 1000;
  Finding finding{"driver"};
  finding.text = fmt::format(
      "NVIDIA {}, for CUDA up to {}.{}",
      driver.kernel_version.empty() ? "driver of unknown version" : driver.kernel_version,
      driver.cuda_version / kVersionStep, driver.cuda_version % kVersionStep / 10);
  if (*build.cuda == '\0') {
    return finding.with(Verdict::kProblem,
                        "; this build has no CUDA module, but a run would need it",
                        "scripts/setup --cuda builds it; until then set device to \"cpu\"");
  }
  finding.text += fmt::format("; this build needs {}", build.cuda);
  // Within a major version, an older driver works with newer libraries.
  int needed = 0;
  std::from_chars(build.cuda, build.cuda + std::strlen(build.cuda), needed);  // "13.0"
  if (driver.cuda_version / kVersionStep >= needed) return finding;
  return finding.with(Verdict::kProblem, "",
                      fmt::format("install a driver for CUDA {} (580 or newer for CUDA 13), or set "
                                  "device to \"cpu\"",
                                  needed));
}

}  // namespace

Driver examine_driver() {
  Driver driver;
  driver.kernel_version = first_line("/sys/module/nvidia/version").value_or("");
  driver.gpus_on_bus = gpus_on_bus();
  const DriverLibrary library;
  driver.library = library.loaded();
  if (!driver.library) return driver;
  library.call("cuDriverGetVersion", &driver.cuda_version);
  if (const int code = library.call("cuInit", 0U); code != 0) {
    driver.error = library.error_text(code);
    return driver;
  }
  if (driver.kernel_version.empty()) driver.kernel_version = version_by_nvml();
  read_devices(library, driver);
  return driver;
}

Findings check_gpus(const Driver& driver, const BuildInfo& build) {
  if (driver.gpus.empty()) return {explain_no_gpu(driver)};
  Findings findings;
  for (std::size_t index = 0; index < driver.gpus.size(); ++index) {
    const Gpu& gpu = driver.gpus[index];
    const std::string memory = memory_text(static_cast<double>(gpu.memory_bytes));
    findings.push_back(
        good(fmt::format("GPU {}", index), fmt::format("{}, {}, compute {}.{}", gpu.name, memory,
                                                       gpu.compute_major, gpu.compute_minor)));
  }
  findings.push_back(check_driver(driver, build));
  return findings;
}

Finding check_shared_memory(const Driver& driver, std::optional<double> free_bytes) {
  constexpr double kEnough_bytes = 256e6;
  Finding finding{"shared memory", Verdict::kGood, "there is no /dev/shm"};
  if (free_bytes) finding.text = memory_text(*free_bytes) + " free in /dev/shm";
  if (driver.gpus.size() < 2) {
    return finding.with(Verdict::kGood, ", used only with several GPUs", "");
  }
  if (free_bytes.value_or(0) >= kEnough_bytes) return finding;
  return finding.with(
      Verdict::kWarning, free_bytes ? ", too little for NCCL" : ", which NCCL uses",
      "docker run --shm-size=1g, mount -o remount,size=1g /dev/shm, or NCCL_SHM_DISABLE=1");
}

Finding check_nccl(const Driver& driver, const BuildInfo& build) {
  if (*build.nccl == '\0') return {"NCCL", Verdict::kNote, "not in this build"};
  return good("NCCL",
              std::string(build.nccl) + (driver.gpus.empty() ? ", not used without a GPU" : ""));
}

}  // namespace mnist_train::doctor
