#include "comm/rendezvous.h"

#include <spdlog/spdlog.h>
#include <sys/stat.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <iterator>
#include <sstream>
#include <string_view>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include "base/error.h"
#include "base/hash.h"
#include "base/system.h"
#include "comm/deadline.h"
#include "comm/failures.h"
#include "comm/refusal.h"
#include "comm/store_connection.h"

namespace mnist_train::comm {

namespace {

constexpr std::string_view kRefused = "refused\n";

std::string told_key(int rank) { return "told/" + std::to_string(rank); }

std::string joined_key(int rank) { return "joined/" + std::to_string(rank); }

std::string compared_key(int rank) { return "compared/" + std::to_string(rank); }

/// Throws what rank 0 refused the start with, if it did, and tells it so.
void check_refusal(c10d::Store& store, int own_rank) {
  const std::string text = store.get_to_str(joined_key(0));
  if (!text.starts_with(kRefused)) return;
  store.set(told_key(own_rank), "");
  std::istringstream lines(text.substr(kRefused.size()));
  int code = 0;
  lines >> code;
  lines.ignore();
  const std::string message(std::istreambuf_iterator<char>(lines), {});
  throw Error(static_cast<ExitCode>(code), "rank 0 cannot start the run: " + message);
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
  // A store that died throws here again.
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

/// Returns a text that only processes on the same boot of the same machine share.
std::string boot_id() {
  return first_line("/proc/sys/kernel/random/boot_id").value_or(host_name());
}

/// Returns a text that is equal for processes that reach each other by loopback and shared memory:
/// those on the same boot of the same machine with the same network, processes and /dev/shm, none
/// of which containers need to share.
std::string host_identity() {
  struct stat shm {};
  (void)::stat("/dev/shm", &shm);
  return host_name() + " " + boot_id() + " " + link_target("/proc/self/ns/net") + " " +
         link_target("/proc/self/ns/pid") + " " + std::to_string(shm.st_dev);
}

/// What each rank tells the others in the store: what must be equal on all, and where it runs.
struct RankInfo {
  std::string world_size;
  std::string fingerprint;
  std::string backend;
  std::string gpus;  // names of those that it may use, each with a blank behind it
  std::string host;
};

std::string to_text(const RankInfo& info) {
  return info.world_size + "\n" + info.fingerprint + "\n" + info.backend + "\n" + info.gpus + "\n" +
         info.host;
}

RankInfo rank_info_of(c10d::Store& store, int rank) {
  const std::string text = store.get_to_str(joined_key(rank));
  RankInfo info;
  std::istringstream lines(text);
  std::getline(lines, info.world_size);
  std::getline(lines, info.fingerprint);
  std::getline(lines, info.backend);
  std::getline(lines, info.gpus);
  std::getline(lines, info.host, '\0');
  return info;
}

/// Returns names that are the same on all ranks for GPUs at these PCI addresses of this machine.
/// NCCL takes ranks with different NCCL_HOSTID for ranks of different machines, which lets several
/// use one GPU.
std::string gpu_names(const std::vector<std::string>& addresses) {
  const char* host = std::getenv("NCCL_HOSTID");
  const std::string machine = host == nullptr ? boot_id() : hash_hex(host);
  std::string names;
  for (const std::string& address : addresses) names += fmt::format("{}/{} ", machine, address);
  return names;
}

std::vector<std::string> gpus_of(const RankInfo& info) {
  std::istringstream names(info.gpus);
  return {std::istream_iterator<std::string>(names), {}};
}

/// Runs on every rank, so that none of them waits for one that refused.
void compare_rank_infos(c10d::Store& store, int world_size, RendezvousResult& result) {
  const RankInfo of_rank_0 = rank_info_of(store, 0);
  std::vector<std::vector<std::string>> gpus{gpus_of(of_rank_0)};
  for (int rank = 1; rank < world_size; ++rank) {
    const RankInfo info = rank_info_of(store, rank);
    result.one_host = result.one_host && info.host == of_rank_0.host;
    gpus.push_back(gpus_of(info));
    const std::string name = "rank " + std::to_string(rank);
    if (info.world_size != of_rank_0.world_size) {
      throw Error(ExitCode::kConfig, name + " was told that there are " + info.world_size +
                                         " processes, rank 0 that there are " +
                                         of_rank_0.world_size +
                                         " (WORLD_SIZE, or what the launcher sets)");
    }
    if (info.fingerprint != of_rank_0.fingerprint) {
      throw Error(ExitCode::kConfig, name +
                                         " runs with another config than rank 0: give every "
                                         "process the same file and flags");
    }
    if (info.backend != of_rank_0.backend) {
      throw Error(ExitCode::kConfig,
                  name + " uses backend " + info.backend + ", rank 0 uses " + of_rank_0.backend +
                      ": `mnist-train doctor` says on each machine which GPUs it sees");
    }
  }
  result.gpus = launch::share_out_gpus(gpus);
}

/// Keeps rank 0, with which the store may go away, until all ranks have read what they need of it.
void wait_for_readers(c10d::Store& store, const RendezvousOptions& options) {
  store.set(compared_key(options.identity.rank), "");
  if (options.identity.rank != 0) return;
  std::vector<std::string> keys;
  for (int rank = 1; rank < options.identity.world_size; ++rank) keys.push_back(compared_key(rank));
  store.wait(keys, to_milliseconds(options.timeout_s));
}

}  // namespace

void publish_refusal(const RendezvousOptions& options, const Refusal& refusal) {
  c10d::PrefixStore store(options.identity.store_prefix, connect_to_store(options));
  std::vector<std::string> told;
  for (int rank = 1; rank < options.identity.world_size; ++rank) told.push_back(told_key(rank));
  try {
    store.set(joined_key(0), std::string(kRefused) +
                                 std::to_string(static_cast<int>(refusal.code)) + "\n" +
                                 refusal.message);
    store.wait(told, to_milliseconds(options.timeout_s));
  } catch (const std::exception& error) {
    spdlog::debug("not all ranks know of the refusal: {}", short_message(error));
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
                 to_text({std::to_string(world_size), options.fingerprint, options.backend,
                          gpu_names(options.gpus), host_identity()}));
      wait_for_all(*store, options);
      RendezvousResult joined;
      joined.store = store;
      compare_rank_infos(*store, world_size, joined);
      // All ranks may refuse that, each by itself.
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
