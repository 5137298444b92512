#include "comm/store_connection.h"

#include <netdb.h>
#include <poll.h>
#include <spdlog/fmt/fmt.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <memory>
#include <optional>
#include <thread>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStoreBackend.hpp>

#include "base/error.h"
#include "base/file.h"
#include "base/system.h"
#include "comm/deadline.h"
#include "launch/listen_socket.h"

namespace mnist_train::comm {

namespace {

/// The addresses of a host, or why it has none.
struct Host {
  std::shared_ptr<addrinfo> addresses;
  std::string obstacle;
};

Host resolve(const std::string& name, int port) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  const int error = ::getaddrinfo(name.c_str(), std::to_string(port).c_str(), &hints, &found);
  if (error == 0) return {{found, &::freeaddrinfo}, ""};
  const char* why = error == EAI_SYSTEM ? std::strerror(errno) : ::gai_strerror(error);
  return {nullptr, "the host name does not resolve: " + std::string(why)};
}

/// Returns whether the socket became ready before the deadline, and within `at_most_s`.
bool is_ready(int fd, short event, Deadline& deadline, double at_most_s) {
  const double end_s = deadline.left_s() - at_most_s;
  pollfd ready{fd, event, 0};
  do {
    if (::poll(&ready, 1, static_cast<int>(deadline.next_look().count())) > 0) return true;
  } while (deadline.left_s() > std::max(end_s, 0.0));
  return false;
}

/// What a client of c10d's store says first. Its own client waits without end for the answer.
constexpr std::uint32_t kNonce = 0x6d6e6973;

std::array<char, 10> greeting() {
  using c10d::detail::QueryType;
  std::array<char, 10> bytes{static_cast<char>(QueryType::VALIDATE)};
  std::memcpy(&bytes[1], &c10d::detail::validationMagicNumber, sizeof(std::uint32_t));
  bytes[5] = static_cast<char>(QueryType::PING);
  std::memcpy(&bytes[6], &kNonce, sizeof kNonce);
  return bytes;
}

std::string stranger(const std::string& what_it_does) {
  return "what listens there does not answer as a store: it " + what_it_does;
}

/// Returns why no store answers at an address; an empty text if one does.
std::string obstacle_at(const addrinfo& address, Deadline& deadline) {
  constexpr double kConnect_s = 5;  // then the next address has its turn
  const UniqueFd fd(::socket(address.ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!fd.valid()) return std::strerror(errno);
  int error = ::connect(fd.get(), address.ai_addr, address.ai_addrlen) == 0 ? 0 : errno;
  if (error == EINPROGRESS) {
    if (!is_ready(fd.get(), POLLOUT, deadline, kConnect_s)) return "connections are not answered";
    socklen_t size = sizeof error;
    ::getsockopt(fd.get(), SOL_SOCKET, SO_ERROR, &error, &size);
  }
  if (error == ECONNREFUSED) return "connection refused, nothing listens there";
  if (error != 0) return std::strerror(error);
  const auto bytes = greeting();
  (void)::send(fd.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);  // recv tells of an error, too
  std::array<char, sizeof kNonce> answer{};
  for (std::size_t size = 0; size < answer.size();) {
    if (!is_ready(fd.get(), POLLIN, deadline, deadline.left_s())) {
      return stranger("accepts connections and says nothing");
    }
    const ssize_t count = ::recv(fd.get(), &answer[size], answer.size() - size, 0);
    if (count <= 0) return stranger("closes the connection");
    size += static_cast<std::size_t>(count);
  }
  const bool is_store = std::memcmp(answer.data(), &kNonce, sizeof kNonce) == 0;
  return is_store ? "" : stranger("answers something else");
}

/// Tries until the deadline, since the name may resolve and the store be served only once rank 0's
/// host is up. Returns the last obstacle; an empty text if the store answers or, for the rank that
/// serves it, the name resolves.
std::string find_store(const launch::WorkerIdentity& identity, bool serves, Deadline& deadline) {
  std::string obstacle = "the host name does not resolve: no name server answers";
  for (double pause_s = 0.01;; pause_s = std::min(2 * pause_s, 0.5)) {
    const auto host =
        finish_before(deadline, [name = identity.master_address, port = identity.master_port] {
          return resolve(name, port);
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
  store_options.timeout = to_milliseconds(std::max(options.timeout_s, 1.0));  // whole seconds count
  if (options.listen_fd >= 0) {
    store_options.masterListenFd = options.listen_fd;
  } else if (serves) {
    // By itself the store would listen on every interface.
    auto socket = launch::listen_on_host(identity.master_address, identity.master_port,
                                         identity.local_world_size < identity.world_size);
    if (socket) store_options.masterListenFd = socket->fd.release();
  }
  return c10::make_intrusive<c10d::TCPStore>(identity.master_address, store_options);
}

}  // namespace

std::string store_address(const launch::WorkerIdentity& identity) {
  return identity.master_address + ":" + std::to_string(identity.master_port) +
         " (MASTER_ADDR, MASTER_PORT)";
}

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
    if (own != nullptr && own->code() == ExitCode::kRunFailed) throw;  // a refused thread
    fail(": " + short_message(error));
  }
  if (!store) fail(in_time + stranger("accepts connections and says nothing"));
  return *store;
}

}  // namespace mnist_train::comm
