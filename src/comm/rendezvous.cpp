#include <poll.h>
#include <spdlog/fmt/ranges.h>
#include <spdlog/spdlog.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include <array>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <thread>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStoreBackend.hpp>

#include "base/file.h"
#include "base/hash.h"
#include "base/print.h"
#include "comm/communicator.h"
#include "launch/supervisor.h"

namespace mnist_train::comm {

namespace {

/// Returns whether the socket became ready before the deadline and within `max_wait_s`.
bool is_ready(int fd, short event, Deadline& deadline, double max_wait_s) {
  const double end_s = deadline.left_s() - max_wait_s;
  pollfd ready{fd, event, 0};
  do {
    if (::poll(&ready, 1, static_cast<int>(deadline.next_wait().count())) > 0) return true;
  } while (deadline.left_s() > std::max(end_s, 0.0));
  return false;
}

/// The nonce of our ping, which we send ourselves, as c10d's client would wait forever for a reply.
constexpr std::uint32_t kNonce = 0x6d6e6973;

std::array<char, 10> greeting() {
  using c10d::detail::QueryType;
  std::array<char, 10> bytes{static_cast<char>(QueryType::VALIDATE)};
  std::memcpy(&bytes[1], &c10d::detail::validationMagicNumber, sizeof(std::uint32_t));
  bytes[5] = static_cast<char>(QueryType::PING);
  std::memcpy(&bytes[6], &kNonce, sizeof kNonce);
  return bytes;
}

std::string not_a_store(const std::string& behaviour) {
  return "the program listening there does not answer like a store: it " + behaviour;
}

/// Returns why no store answers at an address, or "" if one does.
std::string obstacle_at(const addrinfo& address, Deadline& deadline) {
  constexpr double kConnect_s = 5;  // then the next address is tried
  const UniqueFd fd(::socket(address.ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!fd.valid()) return std::strerror(errno);
  int error = ::connect(fd.get(), address.ai_addr, address.ai_addrlen) == 0 ? 0 : errno;
  if (error == EINPROGRESS) {
    if (!is_ready(fd.get(), POLLOUT, deadline, kConnect_s))
      return "no response to connection attempts";
    socklen_t size = sizeof error;
    ::getsockopt(fd.get(), SOL_SOCKET, SO_ERROR, &error, &size);
  }
  if (error == ECONNREFUSED) return "connection refused, nothing is listening there";
  if (error != 0) return std::strerror(error);
  const auto bytes = greeting();
  (void)::send(fd.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);  // recv reports any error
  std::array<char, sizeof kNonce> answer{};
  for (std::size_t size = 0; size < answer.size();) {
    if (!is_ready(fd.get(), POLLIN, deadline, deadline.left_s())) {
      return not_a_store("accepts connections but sends no data");
    }
    const ssize_t count = ::recv(fd.get(), &answer[size], answer.size() - size, 0);
    if (count <= 0) return not_a_store("closes the connection");
    size += static_cast<std::size_t>(count);
  }
  const bool is_store = std::memcmp(answer.data(), &kNonce, sizeof kNonce) == 0;
  return is_store ? "" : not_a_store("sends unexpected data");
}

/// Retries until the deadline, because rank 0's host may still be starting. Returns why the last
/// attempt failed, or "" if the store answers or, on the rank that serves it, if the name resolves.
std::string find_store(const launch::WorkerIdentity& identity, bool serves, Deadline& deadline) {
  std::string obstacle = "cannot resolve the host name: no name server answers";
  for (double pause_s = 0.01;; pause_s = std::min(2 * pause_s, 0.5)) {
    const auto host =
        finish_before(deadline, [name = identity.master_address, port = identity.master_port] {
          return launch::resolve(name, port);
        });
    if (!host) return obstacle;
    obstacle = host->error;
    for (const addrinfo* each = host->addresses.get(); each != nullptr; each = each->ai_next) {
      obstacle = serves ? "" : obstacle_at(*each, deadline);
      if (obstacle.empty()) return "";
    }
    std::this_thread::sleep_for(
        std::chrono::duration<double>(std::min(pause_s, deadline.left_s())));
    if (deadline.left_s() <= 0) return obstacle;
  }
}

c10::intrusive_ptr<c10d::Store> open_store(const RendezvousOptions& options, bool serves) {
  const launch::WorkerIdentity& identity = options.identity;
  c10d::TCPStoreOptions store_options;
  store_options.port = static_cast<std::uint16_t>(identity.master_port);
  store_options.isServer = serves;
  store_options.waitWorkers = false;
  store_options.timeout =
      to_milliseconds(std::max(options.timeout_s, 1.0));  // c10d requires at least a second
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

/// Connects to the store, which this process serves if it is rank 0 and no agent does. Throws
/// Error(kDistributed) within the timeout, with the address and the cause: the port is in use, the
/// name does not resolve, nothing is listening there, or the program there is not a store or hangs.
c10::intrusive_ptr<c10d::Store> connect_to_store(const RendezvousOptions& options) {
  const launch::WorkerIdentity& identity = options.identity;
  const bool serves = identity.rank == 0 && !identity.store_served_by_agent;
  const auto fail = [&](const std::string& why) {
    throw Error(ExitCode::kDistributed, std::string("cannot ") + (serves ? "serve" : "reach") +
                                            " the store at " + store_address(identity) + why);
  };
  const std::string in_time =
      fmt::format(" within {:g} s (launch.rendezvous_timeout_s): ", options.timeout_s);
  Deadline deadline(options.timeout_s);
  if (options.listen_fd < 0) {
    const std::string obstacle = find_store(identity, serves, deadline);
    if (!obstacle.empty()) fail(in_time + obstacle);
  }
  std::optional<c10::intrusive_ptr<c10d::Store>> store;
  try {
    store = finish_before(deadline, [options, serves] { return open_store(options, serves); });
  } catch (const std::exception& error) {
    const auto* our_error = dynamic_cast<const Error*>(&error);
    if (our_error && our_error->code() == ExitCode::kRunFailed) throw;  // cannot start a thread
    if (!(serves && is_timeout(error))) fail(": " + short_message(error));
  }
  if (!store && serves) {
    fail(in_time +
         "this process serves it, but cannot connect to it: MASTER_ADDR must be an address of rank "
         "0's machine, and its network interface must be up (`ip address` lists both)");
  }
  if (!store) fail(in_time + not_a_store("accepts connections but sends no data"));
  return *store;
}

constexpr const char* kVerdict = "verdict";  // rank 0's: a Refusal, or "" to start the run
constexpr const char* kRead = "read";        // a rank has read a refusal or, if none, all entries
constexpr const char* kJoined = "joined";
constexpr const char* kJoins = "joins";  // how many processes have joined as a rank
constexpr double kReadGrace_s = 1;       // for other ranks to read the verdict after the timeout

/// Returns the key that a rank sets after an event.
std::string rank_key(const char* event, int rank) {
  return std::string(event) + "/" + std::to_string(rank);
}

/// Waits until all keys are set. Returns false if the deadline passes first or the store fails.
bool wait_until_set(c10d::Store& store, const std::vector<std::string>& keys, Deadline& deadline) {
  while (true) {
    try {
      store.wait(keys, deadline.next_wait());
      return true;
    } catch (const std::exception& error) {
      if (deadline.left_s() <= 0 || !is_timeout(error)) return false;
    }
  }
}

/// Waits until the other ranks have read rank 0's verdict: the store may vanish when rank 0 exits.
void wait_for_readers(c10d::Store& store, int world_size, Deadline& deadline) {
  Deadline extended(std::max(deadline.left_s(), kReadGrace_s));
  std::vector<std::string> keys;
  for (int rank = 1; rank < world_size; ++rank) keys.push_back(rank_key(kRead, rank));
  (void)wait_until_set(store, keys, extended);
}

struct Refusal {
  ExitCode code = ExitCode::kDone;
  std::string message;
};
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(Refusal, code, message)

/// Reports to the other ranks why rank 0 refuses to start the run, and waits until they read it.
void publish_refusal(c10d::Store& store, const RendezvousOptions& options, const Refusal& refusal,
                     Deadline& deadline) {
  try {
    store.set(kVerdict, json_text(nlohmann::json(refusal)));
    wait_for_readers(store, options.identity.world_size, deadline);
  } catch (const std::exception& error) {
    spdlog::debug("cannot report the refusal to other ranks: {}", short_message(error));
  }
}

/// Throws an error that names the missing ranks, if there are any.
void require_all(c10d::Store& store, const RendezvousOptions& options) {
  const int world_size = options.identity.world_size;
  std::vector<std::string> missing;
  std::string repeated;
  for (int rank = 0; rank < world_size; ++rank) {
    // Throws if the store has died.
    if (!store.check({rank_key(kJoined, rank)})) missing.push_back("rank " + std::to_string(rank));
    if (store.add(rank_key(kJoins, rank), 0) > 1) {
      repeated += fmt::format("; multiple processes joined as rank {}", rank);
    }
  }
  if (missing.empty()) return;
  throw Error(ExitCode::kDistributed,
              fmt::format("{} of {} ranks joined within {:g} s (launch.rendezvous_timeout_s), "
                          "missing: {}{}",
                          world_size - std::ssize(missing), world_size, options.timeout_s,
                          fmt::join(missing, ", "), repeated));
}

/// Waits for rank 0's verdict, and throws it if it is a refusal.
void check_verdict(c10d::Store& store, const RendezvousOptions& options) {
  Deadline deadline(options.timeout_s + kReadGrace_s);
  if (!wait_until_set(store, {kVerdict}, deadline)) {
    require_all(store, options);
    throw PeerError("lost another rank during rendezvous: rank 0 no longer responds");
  }
  const std::string verdict = store.get_to_str(kVerdict);
  if (verdict.empty()) return;
  const auto refusal = nlohmann::json::parse(verdict).get<Refusal>();
  store.set(rank_key(kRead, options.identity.rank), "");
  throw Error(refusal.code, refusal.message);
}

std::string link_target(const char* path) {
  std::error_code error;
  return std::filesystem::read_symlink(path, error).string();
}

/// Returns an ID for this machine's current boot.
std::string boot_id() {
  return first_line("/proc/sys/kernel/random/boot_id").value_or(host_name());
}

/// Returns an ID that processes have in common if they share loopback and shared memory: same
/// machine and boot, same network and PID namespaces, same /dev/shm.
std::string host_identity() {
  struct stat shm {};
  (void)::stat("/dev/shm", &shm);
  return host_name() + " " + boot_id() + " " + link_target("/proc/self/ns/net") + " " +
         link_target("/proc/self/ns/pid") + " " + std::to_string(shm.st_dev);
}

/// A rank's entry in the store: values that must be equal on all ranks, its GPUs and its host.
struct RankInfo {
  int world_size = 0;
  std::string build;
  std::string fingerprint;
  std::string backend;
  std::vector<std::string> gpus;  // names of the GPUs that it may use
  std::string host;
};
// With defaults, because the entry of a different build may lack values.
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE_WITH_DEFAULT(RankInfo, world_size, build, fingerprint, backend,
                                                gpus, host)

RankInfo read_rank_info(c10d::Store& store, int rank) {
  return nlohmann::json::parse(store.get_to_str(rank_key(kJoined, rank))).get<RankInfo>();
}

/// Returns names, unique across machines, for the GPUs at these PCI addresses. NCCL treats ranks
/// with different NCCL_HOSTIDs as being on different machines, so they can use the same GPU.
std::vector<std::string> gpu_names(std::vector<std::string> addresses) {
  const char* host = std::getenv("NCCL_HOSTID");
  const std::string machine = (host == nullptr ? boot_id() : hash_hex(host)) + "/";
  for (std::string& address : addresses) address.insert(0, machine);
  return addresses;
}

/// Compares the entries of the ranks as they join, and finds out which hosts and GPUs they share.
void compare_rank_infos(c10d::Store& store, const RendezvousOptions& options, Deadline& deadline,
                        RendezvousResult& result) {
  const RankInfo rank_0_info = read_rank_info(store, 0);
  std::vector<std::vector<std::string>> gpus{rank_0_info.gpus};
  for (int rank = 1; rank < options.identity.world_size; ++rank) {
    if (!wait_until_set(store, {rank_key(kJoined, rank)}, deadline)) require_all(store, options);
    const RankInfo info = read_rank_info(store, rank);
    result.one_host = result.one_host && info.host == rank_0_info.host;
    gpus.push_back(info.gpus);
    const std::string name = "rank " + std::to_string(rank);
    if (info.world_size != rank_0_info.world_size) {
      refuse(
          "{} expects {} processes, but rank 0 expects {} (WORLD_SIZE, or the launcher's variable)",
          name, info.world_size, rank_0_info.world_size);
    }
    if (info.build != rank_0_info.build) {
      refuse("{} runs mnist-train {}, but rank 0 runs {}: give every process the same build", name,
             info.build, rank_0_info.build);
    }
    if (info.fingerprint != rank_0_info.fingerprint) {
      refuse("{} has a different config than rank 0: give every process the same file and flags",
             name);
    }
    if (info.backend != rank_0_info.backend) {
      refuse("{} uses backend {}, but rank 0 uses {}: `mnist-train doctor` lists a machine's GPUs",
             name, info.backend, rank_0_info.backend);
    }
  }
  result.gpus = launch::assign_gpus(gpus);
}

/// Joins the other ranks. Rank 0 compares their entries first and, if they do not match, makes all
/// ranks refuse to start the run.
RendezvousResult join(const c10::intrusive_ptr<c10d::Store>& store,
                      const RendezvousOptions& options) {
  const int rank = options.identity.rank;
  const int world_size = options.identity.world_size;
  // An agent numbers its processes correctly, and its store may hold keys of an earlier program.
  const bool counts = !options.identity.store_served_by_agent;
  const bool is_late = counts && store->check({kVerdict});
  const std::int64_t number = counts ? store->add(rank_key(kJoins, rank), 1) : 0;
  store->set(rank_key(kJoined, rank),
             json_text(nlohmann::json(RankInfo{world_size, options.build, options.fingerprint,
                                               options.backend, gpu_names(options.gpus),
                                               host_identity()})));
  RendezvousResult joined;
  joined.store = store;
  if (rank != 0) check_verdict(*store, options);
  if (is_late || store->add(rank_key(kJoins, rank), 0) != number) {
    refuse("another process has also joined as rank {}: give each process its own rank (RANK)",
           rank);
  }
  Deadline deadline(options.timeout_s);
  try {
    compare_rank_infos(*store, options, deadline, joined);
  } catch (const Error& error) {
    if (rank == 0) publish_refusal(*store, options, {error.code(), error.what()}, deadline);
    throw;
  }
  store->set(rank == 0 ? kVerdict : rank_key(kRead, rank), "");
  // A rank may now refuse to share GPUs and exit; if rank 0 does so, the store may disappear.
  if (rank == 0 && !joined.gpus.is_exclusive()) wait_for_readers(*store, world_size, deadline);
  return joined;
}

}  // namespace

void publish_refusal(const RendezvousOptions& options, ExitCode code, const std::string& message) {
  c10d::PrefixStore store(options.identity.store_prefix, connect_to_store(options));
  Deadline deadline(options.timeout_s);
  publish_refusal(store, options, {code, "rank 0 cannot start the run: " + message}, deadline);
}

RendezvousResult rendezvous(const RendezvousOptions& options) {
  const bool is_alone = options.identity.world_size == 1;
  if (is_alone) return {nullptr, true, launch::assign_gpus({options.gpus})};
  const auto tcp_store = connect_to_store(options);
  auto store = c10::make_intrusive<c10d::PrefixStore>(options.identity.store_prefix, tcp_store);
  constexpr double kMargin_s = 2 + kReadGrace_s;
  Deadline deadline(options.timeout_s + kMargin_s);
  auto result = translate_failures("rendezvous", [&] {
    return finish_before(deadline, [store, options] { return join(store, options); });
  });
  if (result) return *result;
  throw Error(ExitCode::kDistributed,
              "the store at " + store_address(options.identity) +
                  " no longer responds: the process serving it is stopped or has hung");
}

}  // namespace mnist_train::comm
