#pragma once

#include <string>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <vector>

#include "base/error.h"
#include "launch/job.h"

namespace mnist_train::comm {

/// What the ranks of a run need to find each other.
struct RendezvousOptions {
  launch::WorkerIdentity identity;
  double timeout_s = 60;
  int listen_fd = -1;             // rank 0 under our own launcher: its bound socket
  std::string fingerprint;        // a hash of the config, which must be the same on all ranks
  std::string backend;            // "gloo" or "nccl", which must be the same, too
  std::vector<std::string> gpus;  // PCI addresses of those that this rank may use
};

/// What the ranks know of each other after the rendezvous.
struct RendezvousResult {
  c10::intrusive_ptr<c10d::Store> store;
  bool one_host = true;    // all of them reach each other by 127.0.0.1 and /dev/shm
  launch::GpuShares gpus;  // which of `RendezvousOptions::gpus` each of them takes
};

/// Connects to the run's key-value store (rank 0 serves it, unless an agent does) and waits until
/// every rank has joined. Collective. Throws Error(kDistributed) "1 of 2 ranks joined within 60 s,
/// missing: rank 1", Error(kDistributed) that names the address and the obstacle if it is taken or
/// no store answers there within the time-out, and Error(kConfig) if a rank runs with another
/// config or backend. One rank alone has no store.
RendezvousResult rendezvous(const RendezvousOptions& options);

/// Tells the other ranks, which wait in `rendezvous` and throw this Error there, that rank 0 cannot
/// start the run, and waits until all of them know or the time-out is over. For rank 0, instead of
/// `rendezvous`. Throws Error(kDistributed) if the address is taken or cannot be reached.
void publish_refusal(const RendezvousOptions& options, ExitCode code, const std::string& message);

}  // namespace mnist_train::comm
