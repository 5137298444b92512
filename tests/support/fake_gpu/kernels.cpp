#include "support/fake_gpu/kernels.h"

#include <unistd.h>

#include <memory>
#include <mutex>
#include <unordered_map>
#include <utility>

#include "support/fake_gpu/aten_kernels.h"
#include "support/fake_gpu/capture.h"
#include "support/fake_gpu/message.h"
#include "support/fake_gpu/report.h"
#include "support/fake_gpu/settings.h"
#include "support/fake_gpu/stream.h"

namespace mnist_train::fake_gpu {

namespace {

constexpr unsigned kMaxGridHeight = 65535;  // and depth
constexpr std::size_t kMaxShared_bytes = std::size_t{227} * 1024;

struct Kernels {
  std::mutex mutex;
  std::unordered_map<const void*, std::unique_ptr<Kernel>> of_function;
};

Kernels& kernels() {
  static auto& kernels = *new Kernels();
  return kernels;
}

bool is_possible(const LaunchShape& shape) {
  const unsigned threads = shape.block.x * shape.block.y * shape.block.z;
  return shape.grid.x > 0 && shape.grid.y > 0 && shape.grid.z > 0 &&
         shape.grid.y <= kMaxGridHeight && shape.grid.z <= kMaxGridHeight && threads > 0 &&
         threads <= static_cast<unsigned>(kMaxThreadsPerBlock);
}

/// Returns what the device does for one launch: `work`, and what the settings ask for. It is empty
/// where that is nothing, which spares the stream's thread.
Operation with_settings(Operation work, int device) {
  const long kernel_us = settings().kernel_us;
  if (kernel_us == 0 && !counts_started_launches()) return work;
  return [work = std::move(work), device, kernel_us] {
    if (counts_started_launches()) count_started_launch(device);
    if (kernel_us > 0) ::usleep(static_cast<useconds_t>(kernel_us));
    if (work) work();
  };
}

Operation operation_of(const Kernel& kernel, const LaunchShape& shape, void** arguments) {
  if (kernel.bind == nullptr) return emulate_aten_kernel(kernel.name, arguments);
  const Translate translate = [](void* address) { return host_address(address); };
  Operation work;
  kernel.bind(kernel.name, arguments, translate, shape.grid.x, shape.block.x, &work);
  return work;
}

cudaError_t launch(Stream& stream, const char* name, Operation work) {
  const bool captured = is_capturing(stream);
  trace("launch of ", name, " on stream ", &stream, captured ? ", captured" : "");
  count_launch(name, captured);
  return submit(stream, {NodeKind::kKernel, name, with_settings(std::move(work), stream.device())});
}

}  // namespace

void register_kernel(const void* host_function, const char* name) {
  Kernels& all = kernels();
  const std::lock_guard lock(all.mutex);
  std::unique_ptr<Kernel>& kernel = all.of_function[host_function];
  if (!kernel) kernel = std::make_unique<Kernel>();
  kernel->name = name;
}

Kernel* find_kernel(const void* host_function) {
  Kernels& all = kernels();
  const std::lock_guard lock(all.mutex);
  const auto found = all.of_function.find(host_function);
  return found == all.of_function.end() ? nullptr : found->second.get();
}

cudaError_t launch_kernel(const Kernel* kernel, const LaunchShape& shape, void** arguments,
                          cudaStream_t stream) {
  if (kernel == nullptr) {
    say_misuse("launch", "of a kernel that was not registered");
    return cudaErrorInvalidDeviceFunction;
  }
  if (!is_possible(shape)) {
    say_misuse(kernel->name, "is launched in a shape that no GPU takes");
    return cudaErrorInvalidConfiguration;
  }
  if (shape.shared_bytes > kMaxShared_bytes) return cudaErrorInvalidValue;
  return launch(stream_of(stream), kernel->name, operation_of(*kernel, shape, arguments));
}

cudaError_t launch_library_kernel(cudaStream_t stream, const char* name, Operation operation) {
  bind_context();
  return launch(stream_of(stream), name, std::move(operation));
}

}  // namespace mnist_train::fake_gpu
