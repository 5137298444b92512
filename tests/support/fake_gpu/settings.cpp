#include "support/fake_gpu/settings.h"

#include <charconv>
#include <cstdlib>
#include <cstring>
#include <string_view>

#include "support/fake_gpu/device.h"
#include "support/fake_gpu/message.h"

namespace mnist_train::fake_gpu {

namespace {

/// Returns the variable FAKE_GPU_<name>; empty if it is not set.
std::string text_of(const std::string& name) {
  const char* value = std::getenv(("FAKE_GPU_" + name).c_str());
  return value == nullptr ? "" : value;
}

template <class Number>
Number number_of(const std::string& name, Number default_value) {
  const std::string text = text_of(name);
  if (text.empty()) return default_value;
  long number = 0;
  const char* end = text.data() + text.size();
  const auto parsed = std::from_chars(text.data(), end, number);
  if (parsed.ec == std::errc() && parsed.ptr == end && number >= 0) {
    return static_cast<Number>(number);
  }
  say("FAKE_GPU_", name, "=", text, " is not a non-negative integer");
  std::_Exit(2);
}

Settings read_settings() {
  Settings read;
  read.count = number_of("COUNT", 1);
  read.limit_mb = number_of("LIMIT_MB", device_memory_bytes() >> 20);
  read.kernel_us = number_of("KERNEL_US", 0L);
  read.nan_after_reads = number_of("NAN_AFTER_READS", 0L);
  read.nan_from = number_of("NAN_FROM", std::size_t{0});
  read.hang_after_launches = number_of("HANG_AFTER_LAUNCHES", 0L);
  read.hang_device = number_of("HANG_DEVICE", -1);
  read.nvrtc_fails_device = number_of("NVRTC_FAILS_DEVICE", -1);
  read.report = text_of("REPORT");
  return read;
}

/// Reads a list such as "1,0" as CUDA does: a device that does not exist ends the list.
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
