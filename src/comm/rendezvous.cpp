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

/// Returns whether the socket became ready before the deadline and within `at_most_s`.
bool is_ready(int fd, short event, Deadline& deadline, double at_most_s) {
  const double end_s = deadline.left_s() - at_most_s;
  pollfd ready{fd, event, 0};
  do {
    if (::poll(&ready, 1, static_cast<int>(deadline.next_look().count())) > 0) return true;
  } while (deadline.left_s() > std::max(end_s, 0.0));
  return false;
}

/// The nonce of our own ping: c10d's store client would wait forever for an answer.
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
  return "the program that listens there is not a store: it " + behaviour;
}

/// Returns the reason why no store answers at an address, or "" if one does.
std::string obstacle_at(const addrinfo& address, Deadline& deadline) {
  constexpr double kConnect_s = 5;  // then the next address is tried
  const UniqueFd fd(::socket(address.ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!fd.valid()) return std::strerror(errno);
  int error = ::connect(fd.get(), address.ai_addr, address.ai_addrlen) == 0 ? 0 : errno;
  if (error == EINPROGRESS) {
    if (!is_ready(fd.get(), POLLOUT, deadline, kConnect_s))
      return "connection attempts are not answered";
    socklen_t size = sizeof error;
    ::getsockopt(fd.get(), SOL_SOCKET, SO_ERROR, &error, &size);
  }
  if (error == ECONNREFUSED) return "connection refused, nothing listens there";
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
  return is_store ? "" : not_a_store("sends something else");
}

/// Retries until the deadline, because rank 0's host may still be starting. Returns the last
/// obstacle, or "" if the store answers or, on the rank that serves it, if the name resolves.
std::string find_store(const launch::WorkerIdentity& identity, bool serves, Deadline& deadline) {
  std::string obstacle = "the host name does not resolve: no name server answers";
  for (double pause_s = 0.01;; pause_s = std::min(2 * pause_s, 0.5)) {
    const auto host =
        finish_before(deadline, [name = identity.master_address, port = identity.master_port] {
          return launch::resolve(name, port);
        });
    if (!host) return obstacle;
    obstacle = host->obstacle;
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
  store_options.timeout = to_milliseconds(std::max(options.timeout_s, 1.0));  // in whole seconds
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

/// Connects to the store, which rank 0 serves here unless an agent does. Throws Error(kDistributed)
/// within the timeout, naming the address and the obstacle: the port is in use, the name does not
/// resolve, nothing listens there, or the program there is not a store.
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
    const auto* own = dynamic_cast<const Error*>(&error);
    if (own != nullptr && own->code() == ExitCode::kRunFailed) throw;  // cannot start a thread
    fail(": " + short_message(error));
  }
  if (!store) fail(in_time + not_a_store("accepts connections but sends no data"));
  return *store;
}

constexpr const char* kRefused = "refused";  // value: an exit code
constexpr const char* kMessage = "message";

constexpr const char* kTold = "told";  // of the refusal
constexpr const char* kJoined = "joined";
constexpr const char* kCompared = "compared";

/// Returns the key that a rank sets when it has `done` something.
std::string key_of(const char* done, int rank) {
  return std::string(done) + "/" + std::to_string(rank);
}

/// Returns the keys of the ranks from `first` on.
std::vector<std::string> keys_of(const char* done, int first, int world_size) {
  std::vector<std::string> keys;
  for (int rank = first; rank < world_size; ++rank) keys.push_back(key_of(done, rank));
  return keys;
}

/// If rank 0 refused to start the run, acknowledges the refusal and throws it.
void check_refusal(c10d::Store& store, int own_rank) {
  const auto entry = nlohmann::json::parse(store.get_to_str(key_of(kJoined, 0)));
  if (!entry.contains(kRefused)) return;
  store.set(key_of(kTold, own_rank), "");
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
  const std::vector<std::string> keys = keys_of(kJoined, 0, world_size);
  if (are_set(store, {keys.front()}, deadline)) {
    check_refusal(store, options.identity.rank);
    if (are_set(store, keys, deadline)) return;
  }
  // Throws if the store has died.
  std::vector<std::string> missing;
  for (int rank = 0; rank < world_size; ++rank) {
    if (!store.check({key_of(kJoined, rank)})) missing.push_back("rank " + std::to_string(rank));
  }
  throw Error(ExitCode::kDistributed,
              fmt::format("{} of {} ranks joined within {:g} s (launch.rendezvous_timeout_s), "
                          "missing: {}",
                          world_size - std::ssize(missing), world_size, options.timeout_s,
                          fmt::join(missing, ", ")));
}

std::string link_target(const char* path) {
  std::error_code error;
  return std::filesystem::read_symlink(path, error).string();
}

/// Returns an id of the current boot of this machine.
std::string boot_id() {
  return first_line("/proc/sys/kernel/random/boot_id").value_or(host_name());
}

/// Returns an id that is equal for processes that share loopback and shared memory: same machine
/// and boot, same network and PID namespaces, same /dev/shm.
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
  std::vector<std::string> gpus;  // names of the GPUs that it may use
  std::string host;
};
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(RankInfo, world_size, fingerprint, backend, gpus, host)

RankInfo rank_info_of(c10d::Store& store, int rank) {
  return nlohmann::json::parse(store.get_to_str(key_of(kJoined, rank))).get<RankInfo>();
}

/// Returns names for the GPUs at these PCI addresses that are valid on all ranks. NCCL treats ranks
/// with different NCCL_HOSTID as being on different machines, so several can use one GPU.
std::vector<std::string> gpu_names(std::vector<std::string> addresses) {
  const char* host = std::getenv("NCCL_HOSTID");
  const std::string machine = (host == nullptr ? boot_id() : hash_hex(host)) + "/";
  for (std::string& address : addresses) address.insert(0, machine);
  return addresses;
}

/// Runs on every rank, so that no rank waits for one that refused.
void compare_rank_infos(c10d::Store& store, int world_size, RendezvousResult& result) {
  const RankInfo of_rank_0 = rank_info_of(store, 0);
  std::vector<std::vector<std::string>> gpus{of_rank_0.gpus};
  for (int rank = 1; rank < world_size; ++rank) {
    const RankInfo info = rank_info_of(store, rank);
    result.one_host = result.one_host && info.host == of_rank_0.host;
    gpus.push_back(info.gpus);
    const std::string name = "rank " + std::to_string(rank);
    if (info.world_size != of_rank_0.world_size) {
      refuse(
          "{} expects {} processes, but rank 0 expects {} (WORLD_SIZE, or the launcher's variable)",
          name, info.world_size, of_rank_0.world_size);
    }
    if (info.fingerprint != of_rank_0.fingerprint) {
      refuse("{} has a different config than rank 0: give every process the same file and flags",
             name);
    }
    if (info.backend != of_rank_0.backend) {
      refuse("{} uses backend {}, but rank 0 uses {}: `mnist-train doctor` lists a machine's GPUs",
             name, info.backend, of_rank_0.backend);
    }
  }
  result.gpus = launch::share_out_gpus(gpus);
}

}  // namespace

void publish_refusal(const RendezvousOptions& options, ExitCode code, const std::string& message) {
  c10d::PrefixStore store(options.identity.store_prefix, connect_to_store(options));
  try {
    store.set(key_of(kJoined, 0), json_text(nlohmann::json{{kRefused, code}, {kMessage, message}}));
    store.wait(keys_of(kTold, 1, options.identity.world_size), to_milliseconds(options.timeout_s));
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
      store->set(key_of(kJoined, options.identity.rank),
                 json_text(nlohmann::json(RankInfo{world_size, options.fingerprint, options.backend,
                                                   gpu_names(options.gpus), host_identity()})));
      wait_for_all(*store, options);
      RendezvousResult joined;
      joined.store = store;
      compare_rank_infos(*store, world_size, joined);
      if (joined.gpus.one_each()) return joined;
      // Each rank may then refuse the shared GPUs on its own and exit, so rank 0, which may serve
      // the store, waits until all have read the entries.
      store->set(key_of(kCompared, options.identity.rank), "");
      if (options.identity.rank == 0) {
        store->wait(keys_of(kCompared, 1, world_size), to_milliseconds(options.timeout_s));
      }
      return joined;
    });
  });
  if (result) return *result;
  throw Error(ExitCode::kDistributed,
              "the store at " + store_address(options.identity) +
                  " no longer answers: the process that serves it is stopped or hangs");
}

}  // namespace mnist_train::comm
