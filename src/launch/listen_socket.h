#pragma once

#include "base/file.h"

namespace mnist_train::launch {

/// A TCP socket that listens on a free port of 127.0.0.1 alone. Rank 0 inherits it, so nothing is
/// exposed and no other process can take the port in between.
struct ListenSocket {
  UniqueFd fd;
  int port = 0;
};

/// Throws Error(kDistributed).
ListenSocket listen_on_loopback();

}  // namespace mnist_train::launch
