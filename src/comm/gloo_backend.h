#pragma once

#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

namespace mnist_train::comm {

/// Makes Gloo's backend, for CPU and CUDA tensors. On one host it listens on loopback alone; on
/// several on the interface that GLOO_SOCKET_IFNAME names, else on the one that the host's name
/// resolves to. Collective.
c10::intrusive_ptr<c10d::Backend> make_gloo_backend(const c10::intrusive_ptr<c10d::Store>& store,
                                                    int rank, int world_size, bool one_host,
                                                    double timeout_s);

}  // namespace mnist_train::comm
