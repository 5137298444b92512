#include "support/fake_gpu/settings.h"

#include <charconv>
#include <cstdlib>
#include <cstring>
#include <string_view>

#include "support/fake_gpu/message.h"

namespace mnist_train::fake_gpu {

namespace {

std::string text_of(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

long number_of(const char* name, long default_value) {
  const std::string text = text_of(name);
  if (text.empty()) return default_value;
  long number = 0;
  const char* end = text.data() + text.size();
  const auto parsed = std::from_chars(text.data(), end, number);
  if (parsed.ec == std::errc() && parsed.ptr == end && number >= 0) return number;
  say(name, "=", text, " is not a whole number that is at least 0");
  std::_Exit(2);
}

/// Returns the number of a device; -1 if the variable is not set.
int device_of_machine(const char* name) {
  return text_of(name).empty() ? -1 : static_cast<int>(number_of(name, 0));
}

Settings read_settings() {
  Settings read;
  read.count = static_cast<int>(number_of("FAKE_GPU_COUNT", 1));
  read.memory_mb = static_cast<std::size_t>(number_of("FAKE_GPU_MEMORY_MB", 8192));
  read.limit_mb =
      static_cast<std::size_t>(number_of("FAKE_GPU_LIMIT_MB", static_cast<long>(read.memory_mb)));
  read.kernel_us = number_of("FAKE_GPU_KERNEL_US", 0);
  read.nan_after_reads = number_of("FAKE_GPU_NAN_AFTER_READS", 0);
  read.nan_from = static_cast<std::size_t>(number_of("FAKE_GPU_NAN_FROM", 0));
  read.hang_after_launches = number_of("FAKE_GPU_HANG_AFTER_LAUNCHES", 0);
  read.hang_device = device_of_machine("FAKE_GPU_HANG_DEVICE");
  read.nvrtc_fails_device = device_of_machine("FAKE_GPU_NVRTC_FAILS_DEVICE");
  read.trace = number_of("FAKE_GPU_TRACE", 0) != 0;
  read.backtrace = number_of("FAKE_GPU_BACKTRACE", 0) != 0;
  read.idle_kernel = text_of("FAKE_GPU_IDLE_KERNEL");
  read.report = text_of("FAKE_GPU_REPORT");
  read.graph_dump = text_of("FAKE_GPU_GRAPH_DUMP");
  return read;
}

/// Reads a list such as "1,0" as CUDA does, which ignores everything from the first device on that
/// does not exist.
std::vector<int> read_visible_devices() {
  std::vector<int> devices;
  const char* list = std::getenv("CUDA_VISIBLE_DEVICES");
  if (list == nullptr) {
    for (int device = 0; device < settings().count; ++device) devices.push_back(device);
    return devices;
  }
  const char* end = list + std::strlen(list);
  while (list < end) {
    int device = 0;
    const auto parsed = std::from_chars(list, end, device);
    if (parsed.ec != std::errc() || device < 0 || device >= settings().count) break;
    devices.push_back(device);
    if (parsed.ptr == end || *parsed.ptr != ',') break;
    list = parsed.ptr + 1;
  }
  return devices;
}

}  // namespace

const Settings& settings() {
  static const auto& known = *new Settings(read_settings());
  return known;
}

const std::vector<int>& visible_devices() {
  static const auto& known = *new std::vector<int>(read_visible_devices());
  return known;
}

}  // namespace mnist_train::fake_gpu
