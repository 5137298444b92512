#pragma once

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

}  // namespace mnist_train::launch
