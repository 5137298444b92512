#pragma once

#include <cstddef>
#include <string>
#include <vector>

namespace mnist_train::fake_gpu {

/// The settings of the mock. Each is an environment variable, named `FAKE_GPU_` followed by the
/// member's name in capitals; README.md describes them. All are read once, at first use.
struct Settings {
  int count;                 // devices of the machine, ignoring CUDA_VISIBLE_DEVICES
  std::size_t limit_mb;      // allocatable memory per device
  long kernel_us;            // duration of each kernel on its stream
  long nan_after_reads;      // 0: never
  std::size_t nan_from;      // index of a step's first sum that becomes NaN
  long hang_after_launches;  // 0: never
  int hang_device;           // -1: every device
  int nvrtc_fails_device;    // -1: none
  std::string report;        // path of the report without ".PID"; empty: none
};

/// Returns the settings of this process. An invalid value ends the process with exit code 2,
/// because the test that set it relies on its effect.
const Settings& settings();

/// Returns the devices that this process sees, as indices among the machine's devices. The
/// program's device 1 is the second one in the list.
const std::vector<int>& visible_devices();

}  // namespace mnist_train::fake_gpu
