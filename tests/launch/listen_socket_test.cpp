#include "launch/listen_socket.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include "support/catch.h"

namespace mnist_train::launch {
namespace {

sockaddr_in own_address(const ListenSocket& listener) {
  sockaddr_in address{};
  socklen_t size = sizeof address;
  ::getsockname(listener.fd.get(), reinterpret_cast<sockaddr*>(&address), &size);
  return address;
}

TEST_CASE("the socket listens on loopback alone, on the port that it names") {
  const ListenSocket listener = listen_on_loopback();
  const sockaddr_in address = own_address(listener);
  CHECK(ntohl(address.sin_addr.s_addr) == INADDR_LOOPBACK);
  CHECK(ntohs(address.sin_port) == listener.port);
  CHECK(listener.port > 0);

  const UniqueFd client(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  CHECK(::connect(client.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0);
}

TEST_CASE("nobody else gets the port, and no child inherits it by accident") {
  const ListenSocket first = listen_on_loopback();
  const ListenSocket second = listen_on_loopback();
  CHECK(first.port != second.port);
  CHECK((::fcntl(first.fd.get(), F_GETFD) & FD_CLOEXEC) != 0);
}

}  // namespace
}  // namespace mnist_train::launch
