#include "launch/listen_socket.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstring>

namespace mnist_train::launch {

ListenSocket listen_on_loopback(int port) {
  ListenSocket result{UniqueFd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)), 0};
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<std::uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  auto* generic = reinterpret_cast<sockaddr*>(&address);
  socklen_t size = sizeof address;
  const int on = 1;  // a run before this one may have left connections behind
  if (port != 0) ::setsockopt(result.fd.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  if (!result.fd.valid() || ::bind(result.fd.get(), generic, size) != 0 ||
      ::listen(result.fd.get(), SOMAXCONN) != 0 ||
      ::getsockname(result.fd.get(), generic, &size) != 0) {
    throw Error(ExitCode::kDistributed, "cannot listen on port " + std::to_string(port) +
                                            " of 127.0.0.1: " + std::strerror(errno));
  }
  result.port = ntohs(address.sin_port);
  return result;
}

}  // namespace mnist_train::launch
