#pragma once

#include <cstddef>
#include <fstream>
#include <string>

namespace mnist_train::testing {

/// Resets `peak_memory` to the current resident memory.
inline void reset_peak_memory() { std::ofstream("/proc/self/clear_refs") << 5; }

/// Returns the peak resident memory of this process since the reset, in bytes.
inline std::size_t peak_memory() {
  std::ifstream status("/proc/self/status");
  std::string word;
  std::size_t kilobytes = 0;
  while (status >> word && word != "VmHWM:") continue;
  status >> kilobytes;
  return kilobytes * 1024;
}

}  // namespace mnist_train::testing
