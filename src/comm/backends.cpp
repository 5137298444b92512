// The only file that includes Gloo's headers, for the options struct: all of Gloo's code is in
// libtorch_cpu.
#include "comm/backends.h"

#define USE_C10D_GLOO
#include <cstdlib>
#include <string>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>

#include "accelerator/cuda_module.h"
#include "base/system.h"

namespace mnist_train::comm {

namespace {

bool is_set(const char* name) { return std::getenv(name) != nullptr; }

/// Sets the variable unless it, or the name that it had in earlier releases, is set.
void set_default(const char* name, const char* value, const char* earlier_name = nullptr) {
  if (earlier_name != nullptr && is_set(earlier_name)) return;
  ::setenv(name, value, /*overwrite=*/0);
}

}  // namespace

c10::intrusive_ptr<c10d::Backend> make_gloo_backend(const c10::intrusive_ptr<c10d::Store>& store,
                                                    int rank, int world_size, bool one_host,
                                                    double timeout_s) {
  using Gloo = c10d::ProcessGroupGloo;
  auto options = Gloo::Options::create(to_milliseconds(timeout_s));
  const char* interface = std::getenv("GLOO_SOCKET_IFNAME");
  if (interface != nullptr) {
    options->devices.push_back(Gloo::createDeviceForInterface(interface));
  } else if (one_host) {
    options->devices.push_back(Gloo::createDeviceForHostname("127.0.0.1"));
  } else {
    options->devices.push_back(Gloo::createDefaultDevice());
  }
  return c10::make_intrusive<Gloo>(store, rank, world_size, std::move(options));
}

c10::intrusive_ptr<c10d::Backend> make_nccl_backend(const c10::intrusive_ptr<c10d::Store>& store,
                                                    int rank, int world_size, double timeout_s) {
  const auto make = reinterpret_cast<MakeNcclBackend>(
      accelerator::cuda_module_function("mnist_train_make_nccl_backend"));
  return make(store, rank, world_size, timeout_s);
}

void set_nccl_defaults(bool one_host, const std::filesystem::path& dump_folder) {
  // Long enough to write the flight recorder's contents: a rank waits four times as long before it
  // ends.
  set_default("TORCH_NCCL_WAIT_TIMEOUT_DUMP_MILSEC", "1000");
  set_default("TORCH_FR_BUFFER_SIZE", "2000", "TORCH_NCCL_TRACE_BUFFER_SIZE");
  set_default("TORCH_NCCL_DUMP_ON_TIMEOUT", "1");
  if (!dump_folder.empty()) {
    const std::string begin = (dump_folder / "nccl-rank-").string();  // the rank is appended
    set_default("TORCH_FR_DUMP_TEMP_FILE", begin.c_str(), "TORCH_NCCL_DEBUG_INFO_TEMP_FILE");
  }
  if (one_host) set_default("NCCL_SOCKET_IFNAME", "lo");
}

}  // namespace mnist_train::comm
