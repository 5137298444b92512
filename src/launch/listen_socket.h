#pragma once

#include <optional>
#include <string>

#include "base/file.h"

namespace mnist_train::launch {

/// A listening TCP socket. Rank 0 of our own launcher inherits one on 127.0.0.1: nothing is
/// exposed, and no other process can take the port in between.
struct ListenSocket {
  UniqueFd fd;
  int port = 0;
};

/// Listens on a free port of 127.0.0.1. Throws Error(kDistributed).
ListenSocket listen_on_loopback();

/// Listens on the one address that `host`, a name or an address, has on this machine. Returns
/// nothing if it has none here, as behind a load balancer. With `serves_other_hosts` loopback
/// addresses do not count: Debian gives one to the machine's own name. Throws Error(kDistributed)
/// that names a port in use.
std::optional<ListenSocket> listen_on_host(const std::string& host, int port,
                                           bool serves_other_hosts);

}  // namespace mnist_train::launch
