#pragma once

#include <ATen/Parallel.h>

#include <cstdlib>
#include <exception>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <type_traits>
#include <vector>

#include "base/error.h"
#include "comm/communicator.h"
#include "launch/supervisor.h"

namespace mnist_train::testing {

/// Returns a rank's rendezvous options on this machine; rank 0 takes over the listening socket.
inline comm::RendezvousOptions rendezvous_of(int rank, int world_size, int port, int listen_fd,
                                             double timeout_s) {
  comm::RendezvousOptions rendezvous;
  rendezvous.identity.rank = rank;
  rendezvous.identity.local_rank = rank;
  rendezvous.identity.world_size = world_size;
  rendezvous.identity.local_world_size = world_size;
  rendezvous.identity.master_port = port;
  rendezvous.timeout_s = timeout_s;
  rendezvous.listen_fd = rank == 0 ? listen_fd : -1;
  rendezvous.fingerprint = "the same config";
  return rendezvous;
}

/// Runs `run` for every rank, each on its own thread, and throws the error of the first failed
/// rank; a PeerError, caused by another rank's failure, is thrown only if there is no other error.
/// Put assertions after the call: Catch2's are not thread-safe.
inline void on_ranks(int world_size, const std::function<void(int rank)>& run) {
  // c10d's flight recorder is global and does not support several ranks in a process.
  ::setenv("TORCH_FR_BUFFER_SIZE", "0", /*overwrite=*/1);
  std::vector<std::exception_ptr> failures(static_cast<std::size_t>(world_size));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < world_size; ++rank) {
    threads.emplace_back([&, rank] {
      at::set_num_threads(1);
      try {
        run(rank);
      } catch (...) {
        failures[static_cast<std::size_t>(rank)] = std::current_exception();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  std::exception_ptr victim;
  for (const std::exception_ptr& failure : failures) {
    if (!failure) continue;
    try {
      std::rethrow_exception(failure);
    } catch (const PeerError&) {
      if (!victim) victim = failure;
    }
  }
  if (victim) std::rethrow_exception(victim);
}

/// Like `on_ranks`, with ranks connected over Gloo; a single rank has no process group.
inline void on_connected_ranks(int world_size,
                               const std::function<void(comm::Communicator& communicator)>& run,
                               double timeout_s = 30) {
  launch::ListenSocket listener = launch::listen_on_loopback();
  const int listen_fd = listener.fd.release();  // the store closes it
  // Communicators live until all ranks are done, because rank 0 serves the store.
  std::vector<std::unique_ptr<comm::Communicator>> communicators(
      static_cast<std::size_t>(world_size));
  on_ranks(world_size, [&](int rank) {
    auto& communicator = communicators[static_cast<std::size_t>(rank)];
    const auto options = rendezvous_of(rank, world_size, listener.port, listen_fd, timeout_s);
    communicator = std::make_unique<comm::Communicator>(options.identity, comm::rendezvous(options),
                                                        comm::BackendKind::kGloo, timeout_s);
    run(*communicator);
  });
}

/// Like `on_connected_ranks`; returns the results of `run` by rank.
template <class Run>
auto results_of_ranks(int world_size, const Run& run) {
  std::vector<std::invoke_result_t<Run, comm::Communicator&>> results(
      static_cast<std::size_t>(world_size));
  on_connected_ranks(world_size, [&](comm::Communicator& communicator) {
    results[static_cast<std::size_t>(communicator.rank())] = run(communicator);
  });
  return results;
}

}  // namespace mnist_train::testing
