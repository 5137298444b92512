#include <spdlog/spdlog.h>
#include <sys/stat.h>

#include <algorithm>
#include <cstdlib>
#include <thread>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include "base/hash.h"
#include "base/system.h"
#include "comm/communicator.h"
#include "comm/failures.h"
#include "launch/supervisor.h"

namespace mnist_train::comm {

namespace {

c10::intrusive_ptr<c10d::Store> open_store(const RendezvousOptions& options, bool serves) {
  const launch::WorkerIdentity& identity = options.identity;
  c10d::TCPStoreOptions store_options;
  store_options.port = static_cast<std::uint16_t>(identity.master_port);
  store_options.isServer = serves;
  store_options.waitWorkers = false;
  store_options.timeout = to_milliseconds(std::max(options.timeout_s, 1.0));  // whole seconds count
  if (options.listen_fd >= 0) {
    store_options.masterListenFd = options.listen_fd;
  } else if (serves) {
    // By default the store would listen on every interface.
    auto socket = launch::listen_on_host(identity.master_address, identity.master_port,
                                         identity.local_world_size < identity.world_size);
    if (socket) store_options.masterListenFd = socket->fd.release();
  }
  return c10::make_intrusive<c10d::TCPStore>(identity.master_address, store_options);
}

/// Returns the address of the store for messages: "127.0.0.1:29500 (MASTER_ADDR, MASTER_PORT)".
std::string store_address(const launch::WorkerIdentity& identity) {
  return identity.master_address + ":" + std::to_string(identity.master_port) +
         " (MASTER_ADDR, MASTER_PORT)";
}

/// Connects to the store, which rank 0 serves here unless an agent does. Tries until the time-out,
/// since rank 0's host may still be starting.
c10::intrusive_ptr<c10d::Store> connect_to_store(const RendezvousOptions& options) {
  const launch::WorkerIdentity& identity = options.identity;
  const bool serves = identity.rank == 0 && !identity.store_served_by_agent;
  const auto fail = [&](const std::string& why) {
    throw Error(ExitCode::kDistributed, std::string("cannot ") + (serves ? "serve" : "reach") +
                                            " the store at " + store_address(identity) + why);
  };
  std::string obstacle = "no store answers there";
  Deadline deadline(options.timeout_s);
  for (double pause_s = 0.01; deadline.left_s() > 0; pause_s = std::min(2 * pause_s, 0.5)) {
    try {
      const auto store =
          finish_before(deadline, [options, serves] { return open_store(options, serves); });
      if (store) return *store;
    } catch (const Error& error) {
      if (error.code() == ExitCode::kRunFailed) throw;  // a refused thread
      fail(std::string(": ") + error.what());
    } catch (const std::exception& error) {
      obstacle = short_message(error);
      if (options.listen_fd >= 0) break;  // the store has taken the socket
    }
    std::this_thread::sleep_for(
        std::chrono::duration<double>(std::clamp(deadline.left_s(), 0.0, pause_s)));
  }
  fail(
      fmt::format(" within {:g} s (launch.rendezvous_timeout_s): {}", options.timeout_s, obstacle));
  return nullptr;
}

constexpr const char* kRefused = "refused";  // an exit code
constexpr const char* kMessage = "message";

std::string told_key(int rank) { return "told/" + std::to_string(rank); }

std::string joined_key(int rank) { return "joined/" + std::to_string(rank); }

std::string compared_key(int rank) { return "compared/" + std::to_string(rank); }

/// Throws rank 0's refusal to start the run, if there is one, and confirms it.
void check_refusal(c10d::Store& store, int own_rank) {
  const auto entry = nlohmann::json::parse(store.get_to_str(joined_key(0)));
  if (!entry.contains(kRefused)) return;
  store.set(told_key(own_rank), "");
  throw Error(entry.at(kRefused).get<ExitCode>(),
              "rank 0 cannot start the run: " + entry.at(kMessage).get<std::string>());
}

/// Returns whether all keys are set before the deadline.
bool are_set(c10d::Store& store, const std::vector<std::string>& keys, Deadline& deadline) {
  while (true) {
    try {
      store.wait(keys, deadline.next_look());
      return true;
    } catch (const std::exception& error) {
      if (deadline.left_s() <= 0 || !is_timeout(error)) return false;
    }
  }
}

void wait_for_all(c10d::Store& store, const RendezvousOptions& options) {
  const int world_size = options.identity.world_size;
  Deadline deadline(options.timeout_s);
  std::vector<std::string> keys;
  keys.reserve(static_cast<std::size_t>(world_size));
  for (int rank = 0; rank < world_size; ++rank) keys.push_back(joined_key(rank));
  if (are_set(store, {keys.front()}, deadline)) {
    check_refusal(store, options.identity.rank);
    if (are_set(store, keys, deadline)) return;
  }
  // If the store has died, this throws again.
  int joined = 0;
  std::string missing;
  for (int rank = 0; rank < world_size; ++rank) {
    if (store.check({keys[static_cast<std::size_t>(rank)]})) {
      ++joined;
    } else {
      missing += (missing.empty() ? "rank " : ", rank ") + std::to_string(rank);
    }
  }
  throw Error(ExitCode::kDistributed,
              fmt::format("{} of {} ranks joined within {:g} s (launch.rendezvous_timeout_s), "
                          "missing: {}",
                          joined, world_size, options.timeout_s, missing));
}

std::string link_target(const char* path) {
  std::error_code error;
  return std::filesystem::read_symlink(path, error).string();
}

/// Returns a text that is the same only within one boot of one machine.
std::string boot_id() {
  return first_line("/proc/sys/kernel/random/boot_id").value_or(host_name());
}

/// Returns a text that is equal for processes that reach each other by loopback and shared memory:
/// same boot, same machine, and the same namespaces of network, processes and /dev/shm.
std::string host_identity() {
  struct stat shm {};
  (void)::stat("/dev/shm", &shm);
  return host_name() + " " + boot_id() + " " + link_target("/proc/self/ns/net") + " " +
         link_target("/proc/self/ns/pid") + " " + std::to_string(shm.st_dev);
}

/// A rank's entry in the store: values that must be equal on all ranks, and its host.
struct RankInfo {
  int world_size = 0;
  std::string fingerprint;
  std::string backend;
  std::vector<std::string> gpus;  // names of those that it may use
  std::string host;
};
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(RankInfo, world_size, fingerprint, backend, gpus, host)

RankInfo rank_info_of(c10d::Store& store, int rank) {
  return nlohmann::json::parse(store.get_to_str(joined_key(rank))).get<RankInfo>();
}

/// Returns names of the GPUs at these PCI addresses that are the same on all ranks. To NCCL ranks
/// with different NCCL_HOSTID are on different machines, so that several can use one GPU.
std::vector<std::string> gpu_names(std::vector<std::string> addresses) {
  const char* host = std::getenv("NCCL_HOSTID");
  const std::string machine = (host == nullptr ? boot_id() : hash_hex(host)) + "/";
  for (std::string& address : addresses) address.insert(0, machine);
  return addresses;
}

/// Runs on every rank, so that none waits for another that refused.
void compare_rank_infos(c10d::Store& store, int world_size, RendezvousResult& result) {
  const RankInfo of_rank_0 = rank_info_of(store, 0);
  std::vector<std::vector<std::string>> gpus{of_rank_0.gpus};
  for (int rank = 1; rank < world_size; ++rank) {
    const RankInfo info = rank_info_of(store, rank);
    result.one_host = result.one_host && info.host == of_rank_0.host;
    gpus.push_back(info.gpus);
    const std::string name = "rank " + std::to_string(rank);
    if (info.world_size != of_rank_0.world_size) {
      throw Error(ExitCode::kConfig,
                  fmt::format("{} was told that there are {} processes, rank 0 that there are {} "
                              "(WORLD_SIZE, or the launcher's variable)",
                              name, info.world_size, of_rank_0.world_size));
    }
    if (info.fingerprint != of_rank_0.fingerprint) {
      throw Error(ExitCode::kConfig, name +
                                         " runs with another config than rank 0: give every "
                                         "process the same file and flags");
    }
    if (info.backend != of_rank_0.backend) {
      throw Error(ExitCode::kConfig, name + " uses backend " + info.backend + ", rank 0 uses " +
                                         of_rank_0.backend +
                                         ": `mnist-train doctor` lists the GPUs of a machine");
    }
  }
  result.gpus = launch::share_out_gpus(gpus);
}

/// Keeps rank 0, which may serve the store, until all ranks have read their part of it.
void wait_for_readers(c10d::Store& store, const RendezvousOptions& options) {
  store.set(compared_key(options.identity.rank), "");
  if (options.identity.rank != 0) return;
  std::vector<std::string> keys;
  for (int rank = 1; rank < options.identity.world_size; ++rank) keys.push_back(compared_key(rank));
  store.wait(keys, to_milliseconds(options.timeout_s));
}

}  // namespace

void publish_refusal(const RendezvousOptions& options, ExitCode code, const std::string& message) {
  c10d::PrefixStore store(options.identity.store_prefix, connect_to_store(options));
  std::vector<std::string> told;
  for (int rank = 1; rank < options.identity.world_size; ++rank) told.push_back(told_key(rank));
  try {
    store.set(joined_key(0), json_text(nlohmann::json{{kRefused, code}, {kMessage, message}}));
    store.wait(told, to_milliseconds(options.timeout_s));
  } catch (const std::exception& error) {
    spdlog::debug("not all ranks learned of the refusal: {}", short_message(error));
  }
}

RendezvousResult rendezvous(const RendezvousOptions& options) {
  const int world_size = options.identity.world_size;
  if (world_size == 1) return {nullptr, true, launch::share_out_gpus({options.gpus})};
  const auto tcp_store = connect_to_store(options);
  auto store = c10::make_intrusive<c10d::PrefixStore>(options.identity.store_prefix, tcp_store);
  constexpr double kMargin_s = 2;
  Deadline deadline(options.timeout_s + kMargin_s);
  auto result = translate_failures("rendezvous", [&] {
    return finish_before(deadline, [store, options, world_size]() -> RendezvousResult {
      store->set(joined_key(options.identity.rank),
                 json_text(nlohmann::json(RankInfo{world_size, options.fingerprint, options.backend,
                                                   gpu_names(options.gpus), host_identity()})));
      wait_for_all(*store, options);
      RendezvousResult joined;
      joined.store = store;
      compare_rank_infos(*store, world_size, joined);
      // Each rank may refuse that by itself, and end.
      if (!joined.gpus.one_each()) wait_for_readers(*store, options);
      return joined;
    });
  });
  if (result) return *result;
  throw Error(ExitCode::kDistributed, "the store at " + store_address(options.identity) +
                                          " does not answer any more: the process that serves it "
                                          "is stopped or hangs");
}

}  // namespace mnist_train::comm
