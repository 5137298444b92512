#pragma once

#include <string>

#include "base/error.h"
#include "comm/rendezvous.h"

namespace mnist_train::comm {

/// Why rank 0 cannot start the run.
struct Refusal {
  ExitCode code = ExitCode::kConfig;
  std::string message;
};

/// Tells the other ranks, which wait for rank 0 in `rendezvous` and throw this there, that it
/// cannot start the run, and waits until all of them know it or the time-out is over. For rank 0,
/// instead of `rendezvous`. Throws Error(kDistributed) when the address is taken or cannot be
/// reached.
void publish_refusal(const RendezvousOptions& options, const Refusal& refusal);

}  // namespace mnist_train::comm
