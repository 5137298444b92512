#pragma once

#include <cstddef>
#include <string>
#include <vector>

namespace mnist_train::fake_gpu {

/// The settings of the mock. Each one is an environment variable, named `FAKE_GPU_` and the
/// member's name in capitals; README.md lists them. All of them are read once, at first use.
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

/// Returns the settings of this process. A value that is not a number ends the process with exit
/// code 2, because the test that sets it expects it to have an effect.
const Settings& settings();

/// Returns the devices that this process sees, as indices among the machine's devices. The
/// program's device 1 is the second of them.
const std::vector<int>& visible_devices();

}  // namespace mnist_train::fake_gpu
