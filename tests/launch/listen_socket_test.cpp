#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include "launch/supervisor.h"
#include "support/error_of.h"

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

TEST_CASE("a host's socket listens on that address alone, if it is one of this machine's") {
  const int port = listen_on_loopback().port;  // free a moment ago
  for (const char* host : {"127.0.0.1", "localhost"}) {
    const auto listener = listen_on_host(host, port, /*others_come=*/false);
    REQUIRE(listener);
    CHECK(listener->port == port);
    if (own_address(*listener).sin_family == AF_INET) {
      CHECK(ntohl(own_address(*listener).sin_addr.s_addr) == INADDR_LOOPBACK);
    }
  }
  CHECK_FALSE(listen_on_host("127.0.0.1", port, /*others_come=*/true));
  CHECK_FALSE(listen_on_host("192.0.2.1", port, /*others_come=*/true));  // nobody's
  CHECK_FALSE(listen_on_host("no such host", port, /*others_come=*/true));
}

TEST_CASE("a host's port that is taken is named") {
  const ListenSocket holder = listen_on_loopback();
  const auto failure = testing::error_of([&] { listen_on_host("127.0.0.1", holder.port, false); });
  CHECK(failure.code == ExitCode::kDistributed);
  CHECK(failure.message == "cannot listen on port " + std::to_string(holder.port) +
                               " of 127.0.0.1: Address already in use");
}

}  // namespace
}  // namespace mnist_train::launch
