#pragma once

#include <string>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "comm/rendezvous.h"

namespace mnist_train::comm {

/// Returns where the run's key-value store is, for messages: "127.0.0.1:29500 (MASTER_ADDR,
/// MASTER_PORT)".
std::string store_address(const launch::WorkerIdentity& identity);

/// Connects to the run's store, which rank 0 serves here unless an agent does. Throws
/// Error(kDistributed) within the time-out, naming the address and what was found there: a port
/// that is taken, a name that does not resolve, nothing, or a program that does not answer as a
/// store.
c10::intrusive_ptr<c10d::Store> connect_to_store(const RendezvousOptions& options);

}  // namespace mnist_train::comm
