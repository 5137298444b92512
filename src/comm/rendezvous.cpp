#include "comm/rendezvous.h"

#include <sys/stat.h>

#include <filesystem>
#include <fstream>
#include <sstream>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include "base/clock.h"
#include "base/error.h"
#include "base/host.h"
#include "comm/failures.h"
#include "launch/listen_socket.h"

namespace mnist_train::comm {

namespace {

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
    } else if (options.isServer) {
      // By itself the store would listen on every interface.
      auto socket = launch::listen_on_host(identity.master_address, identity.master_port,
                                           identity.local_world_size < identity.world_size);
      if (socket) options.masterListenFd = socket->fd.release();
    }
    return c10::make_intrusive<c10d::TCPStore>(identity.master_address, options);
  } catch (const std::exception& error) {
    throw Error(ExitCode::kDistributed,
                "cannot " + std::string(options.isServer ? "serve" : "reach") + " the store at " +
                    identity.master_address + ":" + std::to_string(identity.master_port) +
                    " (MASTER_ADDR, MASTER_PORT): " + short_message(error));
  }
}

void wait_for_all(c10d::Store& store, const Rendezvous& rendezvous) {
  const int world_size = rendezvous.identity.world_size;
  std::vector<std::string> keys;
  keys.reserve(static_cast<std::size_t>(world_size));
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

std::string link_target(const char* path) {
  std::error_code error;
  return std::filesystem::read_symlink(path, error).string();
}

/// Equal for processes that reach each other by loopback and shared memory: the same start of the
/// same machine, and the same network, processes and /dev/shm (containers may share none of them).
std::string host_identity() {
  std::ifstream file("/proc/sys/kernel/random/boot_id");
  std::string boot;
  file >> boot;
  struct stat shm {};
  (void)::stat("/dev/shm", &shm);
  return host_name() + " " + boot + " " + link_target("/proc/self/ns/net") + " " +
         link_target("/proc/self/ns/pid") + " " + std::to_string(shm.st_dev);
}

/// What each rank leaves for the others: a fingerprint that must be equal, and where it runs.
struct Card {
  std::string world_size;
  std::string fingerprint;
  std::string backend;
  std::string host;
};

std::string to_text(const Card& card) {
  return card.world_size + "\n" + card.fingerprint + "\n" + card.backend + "\n" + card.host;
}

Card card_of(c10d::Store& store, int rank) {
  const std::string text = store.get_to_str(joined_key(rank));
  Card card;
  std::istringstream lines(text);
  std::getline(lines, card.world_size);
  std::getline(lines, card.fingerprint);
  std::getline(lines, card.backend);
  std::getline(lines, card.host, '\0');
  return card;
}

/// On every rank, so that none of them waits for one that refused.
bool compare_cards(c10d::Store& store, int world_size) {
  const Card of_rank_0 = card_of(store, 0);
  bool one_host = true;
  for (int rank = 1; rank < world_size; ++rank) {
    const Card card = card_of(store, rank);
    one_host = one_host && card.host == of_rank_0.host;
    const std::string name = "rank " + std::to_string(rank);
    if (card.world_size != of_rank_0.world_size) {
      throw Error(ExitCode::kConfig, name + " was told that there are " + card.world_size +
                                         " processes, rank 0 that there are " +
                                         of_rank_0.world_size +
                                         " (WORLD_SIZE, or what the launcher sets)");
    }
    if (card.fingerprint != of_rank_0.fingerprint) {
      throw Error(ExitCode::kConfig, name +
                                         " runs with another config than rank 0: give every "
                                         "process the same file and flags");
    }
    if (card.backend != of_rank_0.backend) {
      throw Error(ExitCode::kConfig,
                  name + " would talk by " + card.backend + ", rank 0 by " + of_rank_0.backend +
                      ": `mnist-train doctor` says on each machine which GPUs it sees");
    }
  }
  return one_host;
}

}  // namespace

Meeting meet(const Rendezvous& rendezvous) {
  const auto base = connect(rendezvous);
  auto store = c10::make_intrusive<c10d::PrefixStore>(rendezvous.identity.store_prefix, base);
  return translate_failures("rendezvous", [&]() -> Meeting {
    store->set(joined_key(rendezvous.identity.rank),
               to_text({std::to_string(rendezvous.identity.world_size), rendezvous.fingerprint,
                        rendezvous.backend, host_identity()}));
    wait_for_all(*store, rendezvous);
    const bool one_host = compare_cards(*store, rendezvous.identity.world_size);
    return {store, one_host};
  });
}

}  // namespace mnist_train::comm
