#pragma once

#include <optional>
#include <string>

#include "base/file.h"

namespace mnist_train::launch {

/// A TCP socket that listens. Rank 0 of our own launcher inherits one that listens on 127.0.0.1
/// alone: nothing is exposed, and no other process can take the port in between.
struct ListenSocket {
  UniqueFd fd;
  int port = 0;
};

/// Listens on a port of 127.0.0.1; 0 takes a free one. Throws Error(kDistributed) that names a port
/// that is taken.
ListenSocket listen_on_loopback(int port = 0);

/// Listens on the address that `host`, a name or an address, has on this machine, and on no other.
/// Returns nothing where the host has no address here, as behind a load balancer. With
/// `serves_other_hosts` loopback addresses do not count: Debian gives one to the machine's own
/// name. Throws Error(kDistributed) that names a port that is taken.
std::optional<ListenSocket> listen_on_host(const std::string& host, int port,
                                           bool serves_other_hosts);

}  // namespace mnist_train::launch
