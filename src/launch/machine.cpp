#include "launch/machine.h"

#include <sched.h>
#include <sys/resource.h>

#include <algorithm>
#include <fstream>
#include <string>

#include "base/error.h"
#include "base/shared_library.h"

namespace mnist_train::launch {

namespace {

/// Reads the quota of cgroup v2: "max 100000" or "200000 100000" (microseconds of processor time in
/// each period).
int quota_cores(int otherwise) {
  std::ifstream file("/sys/fs/cgroup/cpu.max");
  std::string quota;
  double period_us = 0;
  if (!(file >> quota >> period_us) || quota == "max" || period_us <= 0) return otherwise;
  return std::max(1, static_cast<int>(std::stod(quota) / period_us));
}

}  // namespace

Machine this_machine() {
  const int gpus = visible_gpus();
  const bool has_module = !find_program_file(kCudaModule).empty();
  return {usable_cores(), has_module ? gpus : 0, gpus > 0 && !has_module};
}

int usable_cores() {
  cpu_set_t mask;
  CPU_ZERO(&mask);
  const int cores = ::sched_getaffinity(0, sizeof mask, &mask) == 0 ? CPU_COUNT(&mask) : 1;
  return std::max(1, std::min(cores, quota_cores(cores)));
}

int visible_gpus() {
  const SharedLibrary driver("libcuda.so.1");
  // The driver's C API: int cuInit(unsigned flags); int cuDeviceGetCount(int* count). 0 is success.
  const auto init = driver.find<int(unsigned)>("cuInit");
  const auto device_count = driver.find<int(int*)>("cuDeviceGetCount");
  int count = 0;
  if (init == nullptr || device_count == nullptr || init(0) != 0 || device_count(&count) != 0) {
    return 0;
  }
  return count;
}

void require_open_files() {
  constexpr rlim_t kNeeded = 512;
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur >= kNeeded) return;
  const std::string before = std::to_string(limit.rlim_cur);
  const std::string needed = std::to_string(kNeeded);
  limit.rlim_cur = kNeeded;
  limit.rlim_max = std::max(limit.rlim_max, kNeeded);  // root may
  if (::setrlimit(RLIMIT_NOFILE, &limit) == 0) return;
  throw Error(ExitCode::kRunFailed, "mnist-train: only " + before +
                                        " files may be open at once, but " + needed +
                                        " are needed: raise the limit (ulimit -n " + needed + ")");
}

}  // namespace mnist_train::launch
