#pragma once

#include <cstddef>
#include <fstream>
#include <string>

namespace mnist_train::testing {

/// Restarts `peak_memory` from the current resident memory.
inline void reset_peak_memory() { std::ofstream("/proc/self/clear_refs") << 5; }

/// The most memory of this process that was resident at a time since then, in bytes.
inline std::size_t peak_memory() {
  std::ifstream status("/proc/self/status");
  std::string word;
  std::size_t kilobytes = 0;
  while (status >> word && word != "VmHWM:") continue;
  status >> kilobytes;
  return kilobytes * 1024;
}

}  // namespace mnist_train::testing
