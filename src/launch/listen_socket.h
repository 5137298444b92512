#pragma once

#include <optional>
#include <string>

#include "base/file.h"

namespace mnist_train::launch {

/// A TCP socket that listens on a port of 127.0.0.1 alone, so nothing is exposed. Rank 0 of our own
/// launcher inherits one, so no other process can take the port in between.
struct ListenSocket {
  UniqueFd fd;
  int port = 0;
};

/// `port` 0: a free one. Throws Error(kDistributed), naming a port that is taken.
ListenSocket listen_on_loopback(int port = 0);

/// The same on the address that `host`, a name or an address, has on this machine, and on no other.
/// Nothing where it has none here, as behind a load balancer, and with `others_come` where it is a
/// loopback address here, as Debian's own name of a machine is. Throws Error(kDistributed), naming
/// a port that is taken.
std::optional<ListenSocket> listen_on_host(const std::string& host, int port, bool others_come);

}  // namespace mnist_train::launch
