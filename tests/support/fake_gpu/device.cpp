#include "support/fake_gpu/device.h"

#include "support/fake_gpu/settings.h"

namespace mnist_train::fake_gpu {

namespace {

thread_local int device_of_thread = 0;
thread_local bool thread_has_context = false;

}  // namespace

int device_count() { return static_cast<int>(visible_devices().size()); }

int current_device() { return device_of_thread; }

void set_current_device(int device) {
  device_of_thread = device;
  bind_context();
}

void bind_context() { thread_has_context = true; }

bool has_context() { return thread_has_context; }

std::size_t device_memory_bytes() { return settings().memory_mb << 20; }

}  // namespace mnist_train::fake_gpu
