#include "accelerator/device.h"

#include <c10/core/impl/VirtualGuardImpl.h>
#include <sys/resource.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <thread>
#include <utility>

#include "base/cpu.h"
#include "base/print.h"
#include "base/system.h"
#include "launch/job.h"

namespace mnist_train::accelerator {

namespace {

std::atomic<launch::RankStatus*> waiting_status = nullptr;

SharedLibrary load() {
  const std::string path = find_program_file(launch::kCudaModule).string();
  SharedLibrary library(path.empty() ? launch::kCudaModule : path, /*exports=*/true);
  if (library.loaded()) return library;
  refuse(
      "cannot use a GPU: {}; scripts/setup --cuda installs LibTorch's CUDA libraries and builds "
      "mnist-train's CUDA module",
      library.error());
}

/// Records the event after all work submitted so far to the calling thread's stream.
void record(c10::Event& event, at::Device device) {
  event.record(c10::impl::VirtualGuardImpl(device.type()).getStream(device));
}

}  // namespace

void report_waits_to(launch::RankStatus* status) { waiting_status = status; }

void wait_until(const std::function<bool()>& has_reached) {
  constexpr double kSpin_s = 50e-6;  // before the first sleep, which takes at least as long
  constexpr std::chrono::microseconds kPause(50);
  if (has_reached()) return;
  const launch::WaitScope waiting(waiting_status, launch::Wait::kDevice);
  const double begin_s = monotonic_seconds();
  while (!has_reached()) {
    if (monotonic_seconds() - begin_s > kSpin_s) std::this_thread::sleep_for(kPause);
  }
}

void synchronize(at::Device device) {
  if (device.is_cpu()) return;
  c10::Event event(device.type());
  record(event, device);
  wait_until([&] { return event.query(); });
}

RunAheadLimit::RunAheadLimit(at::Device device, int steps) : device_(device), steps_(steps) {
  if (device.is_cpu()) return;
  last_.emplace(device.type());
  next_.emplace(device.type());
}

void RunAheadLimit::step_launched() {
  if (!last_ || ++launched_ < steps_) return;
  launched_ = 0;
  record(*next_, device_);
  wait_until([&] { return last_->query(); });
  std::swap(last_, next_);
}

at::Tensor to_host(const at::Tensor& tensor) {
  synchronize(tensor.device());
  return tensor.cpu();
}

at::Tensor to_device(const at::Tensor& tensor, at::Device device) {
  if (device.is_cpu() || !tensor.is_cpu()) return tensor.to(device);
  return tensor.pin_memory().to(device, tensor.scalar_type(), /*non_blocking=*/true);
}

std::int64_t peak_memory_bytes(at::Device device) {
  rusage usage{};
  ::getrusage(RUSAGE_SELF, &usage);
  const std::int64_t host_bytes = usage.ru_maxrss * 1024;
  if (device.is_cpu()) return host_bytes;
  return std::max(host_bytes, cuda_module().peak_memory_bytes(device.index()));
}

bool computes_bfloat16(at::Device device) {
  if (!device.is_cpu()) return cuda_module().computes_bfloat16(device.index());
  return cpu_features().avx512_bf16;
}

void* cuda_module_function(const char* name) {
  static const SharedLibrary kLibrary = load();
  if (auto* function = kLibrary.find<void()>(name)) return reinterpret_cast<void*>(function);
  refuse("{} is not mnist-train's CUDA module", launch::kCudaModule);
}

const CudaModule& cuda_module() {
  using Entry = const CudaModule*();
  static const CudaModule& module =
      *reinterpret_cast<Entry*>(cuda_module_function("mnist_train_cuda_module"))();
  return module;
}

}  // namespace mnist_train::accelerator
