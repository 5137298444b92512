#include "comm/rendezvous.h"

#include <chrono>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include "base/error.h"
#include "comm/failures.h"
#include "launch/listen_socket.h"

namespace mnist_train::comm {

namespace {

using std::chrono::milliseconds;

milliseconds to_milliseconds(double seconds) {
  return milliseconds(static_cast<std::int64_t>(seconds * 1000));
}

std::string joined_key(int rank) { return "joined/" + std::to_string(rank); }

c10::intrusive_ptr<c10d::Store> connect(const Rendezvous& rendezvous) {
  const launch::WorkerIdentity& identity = rendezvous.identity;
  c10d::TCPStoreOptions options;
  options.port = static_cast<std::uint16_t>(identity.master_port);
  options.isServer = identity.rank == 0 && !identity.store_served_by_agent;
  options.waitWorkers = false;
  options.timeout = to_milliseconds(rendezvous.timeout_s);
  try {
    if (rendezvous.listen_fd >= 0) {
      options.masterListenFd = rendezvous.listen_fd;
    } else if (options.isServer && identity.master_address == "127.0.0.1") {
      options.masterListenFd = launch::listen_on_loopback(identity.master_port).fd.release();
    }
    return c10::make_intrusive<c10d::TCPStore>(identity.master_address, options);
  } catch (const std::exception& error) {
    throw Error(ExitCode::kDistributed,
                "cannot " + std::string(options.isServer ? "serve" : "reach") + " the store at " +
                    identity.master_address + ":" + std::to_string(identity.master_port) +
                    " (MASTER_ADDR, MASTER_PORT): " + first_line(error.what()));
  }
}

void wait_for_all(c10d::Store& store, const Rendezvous& rendezvous) {
  const int world_size = rendezvous.identity.world_size;
  std::vector<std::string> keys;
  for (int rank = 0; rank < world_size; ++rank) keys.push_back(joined_key(rank));
  try {
    store.wait(keys, to_milliseconds(rendezvous.timeout_s));
    return;
  } catch (const std::exception&) {
    // Which ones are missing is said below; a store that died throws there again.
  }
  int joined = 0;
  std::string missing;
  for (int rank = 0; rank < world_size; ++rank) {
    if (store.check({keys[static_cast<std::size_t>(rank)]})) {
      ++joined;
    } else {
      missing += (missing.empty() ? "rank " : ", rank ") + std::to_string(rank);
    }
  }
  throw Error(ExitCode::kDistributed, std::to_string(joined) + " of " + std::to_string(world_size) +
                                          " ranks joined within " +
                                          std::to_string(static_cast<int>(rendezvous.timeout_s)) +
                                          " s (launch.rendezvous_timeout_s), missing: " + missing);
}

/// On every rank, so that none of them waits for one that refused.
void compare_fingerprints(c10d::Store& store, const Rendezvous& rendezvous) {
  const std::string of_rank_0 = store.get_to_str(joined_key(0));
  for (int rank = 1; rank < rendezvous.identity.world_size; ++rank) {
    if (store.get_to_str(joined_key(rank)) == of_rank_0) continue;
    throw Error(ExitCode::kConfig, "rank " + std::to_string(rank) +
                                       " runs with another config than rank 0: give every process "
                                       "the same file and flags");
  }
}

}  // namespace

c10::intrusive_ptr<c10d::Store> meet(const Rendezvous& rendezvous) {
  const auto base = connect(rendezvous);
  auto store = c10::make_intrusive<c10d::PrefixStore>(rendezvous.identity.store_prefix, base);
  return translate_failures("rendezvous", [&]() -> c10::intrusive_ptr<c10d::Store> {
    store->set(joined_key(rendezvous.identity.rank), rendezvous.fingerprint);
    wait_for_all(*store, rendezvous);
    compare_fingerprints(*store, rendezvous);
    return store;
  });
}

}  // namespace mnist_train::comm
