#include "launch/listen_socket.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstring>
#include <memory>

namespace mnist_train::launch {

namespace {

/// Returns whether the socket listens; errno tells why not.
bool listen_at(const sockaddr* address, socklen_t size, bool reuse, ListenSocket& result) {
  result.fd = UniqueFd(::socket(address->sa_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const int on = 1;  // an earlier run may have left connections
  if (reuse) ::setsockopt(result.fd.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  return result.fd.valid() && ::bind(result.fd.get(), address, size) == 0 &&
         ::listen(result.fd.get(), SOMAXCONN) == 0;
}

bool is_loopback(const sockaddr* address) {
  if (address->sa_family == AF_INET) {
    const auto* four = reinterpret_cast<const sockaddr_in*>(address);
    return ntohl(four->sin_addr.s_addr) >> 24 == 127;
  }
  const auto* six = reinterpret_cast<const sockaddr_in6*>(address);
  return address->sa_family == AF_INET6 && IN6_IS_ADDR_LOOPBACK(&six->sin6_addr) != 0;
}

[[noreturn]] void refuse_port(const std::string& host, int port) {
  throw Error(ExitCode::kDistributed, "cannot listen on port " + std::to_string(port) + " of " +
                                          host + ": " + std::strerror(errno));
}

}  // namespace

ListenSocket listen_on_loopback() {
  ListenSocket result;
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  auto* generic = reinterpret_cast<sockaddr*>(&address);
  socklen_t size = sizeof address;
  if (!listen_at(generic, size, /*reuse=*/false, result) ||
      ::getsockname(result.fd.get(), generic, &size) != 0) {
    refuse_port("127.0.0.1", 0);
  }
  result.port = ntohs(address.sin_port);
  return result;
}

std::optional<ListenSocket> listen_on_host(const std::string& host, int port,
                                           bool serves_other_hosts) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  if (::getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &found) != 0) {
    return std::nullopt;
  }
  const std::unique_ptr<addrinfo, void (*)(addrinfo*)> addresses(found, &::freeaddrinfo);
  for (const addrinfo* each = found; each != nullptr; each = each->ai_next) {
    if (serves_other_hosts && is_loopback(each->ai_addr)) continue;
    ListenSocket result;
    if (listen_at(each->ai_addr, each->ai_addrlen, /*reuse=*/true, result)) {
      result.port = port;
      return result;
    }
    if (errno != EADDRNOTAVAIL && errno != EAFNOSUPPORT) refuse_port(host, port);
  }
  return std::nullopt;
}

}  // namespace mnist_train::launch
