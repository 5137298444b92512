// The one file that sees Gloo's headers. They only shape the options struct: all code of Gloo's is
// in libtorch_cpu.
#include "comm/gloo_backend.h"

#define USE_C10D_GLOO
#include <cstdlib>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>

#include "base/system.h"

namespace mnist_train::comm {

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

}  // namespace mnist_train::comm
