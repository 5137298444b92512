#pragma once

#include <filesystem>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

namespace mnist_train::comm {

/// Makes Gloo's backend, for CPU and CUDA tensors. On one host it listens on loopback alone; on
/// several on the interface that GLOO_SOCKET_IFNAME names, else on the one that the host's name
/// resolves to. Collective.
c10::intrusive_ptr<c10d::Backend> make_gloo_backend(const c10::intrusive_ptr<c10d::Store>& store,
                                                    int rank, int world_size, bool one_host,
                                                    double timeout_s);

/// The signature of `mnist_train_make_nccl_backend`, which the CUDA module exports.
using MakeNcclBackend = c10::intrusive_ptr<c10d::Backend> (*)(
    const c10::intrusive_ptr<c10d::Store>& store, int rank, int world_size, double timeout_s);

/// Makes NCCL's backend on the calling thread's GPU. Collective. Throws Error(kConfig) if the CUDA
/// module cannot be loaded.
c10::intrusive_ptr<c10d::Backend> make_nccl_backend(const c10::intrusive_ptr<c10d::Store>& store,
                                                    int rank, int world_size, double timeout_s);

/// Sets environment variables of NCCL and c10d's watchdog that the user has not set: errors end the
/// process; the flight recorder keeps the last collectives and writes them below `dump_folder` when
/// one times out, which shows the collective that the ranks disagree on; on one host NCCL connects
/// over loopback, so that nothing listens outside.
void set_nccl_defaults(bool one_host, const std::filesystem::path& dump_folder);

}  // namespace mnist_train::comm
