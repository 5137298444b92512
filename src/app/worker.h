#pragma once

#include <c10/core/Device.h>

#include <filesystem>
#include <memory>

#include "base/cgroups.h"
#include "comm/communicator.h"
#include "launch/job.h"
#include "launch/placement.h"
#include "launch/status_board.h"
#include "launch/worker_identity.h"
#include "settings/run_config.h"

namespace mnist_train::app {

/// One rank, placed on its device and connected to the others.
struct Worker {
  launch::Job job;
  settings::RunConfig config;
  launch::WorkerIdentity identity;
  launch::Placement placement;
  launch::StatusBoard board;
  comm::Communicator communicator;
  std::filesystem::path run_folder;  // training only; the same on all ranks
  MemoryKills memory_kills{};        // since the worker was started

  bool is_rank0() const { return identity.rank == 0; }
  at::Device device() const;
  launch::RankStatus& status() { return board.of(identity.local_rank); }
};

/// Reads the job of the front end, finds out this rank's identity, sets up logging, threads and
/// device, and connects to the other ranks. Collective. Throws Error.
std::unique_ptr<Worker> start_worker();

/// Selects our own GPU kernels, which replace operations of LibTorch: those that work on the GPUs
/// of all ranks, so that all compute alike. Logs which do not work, and why. Collective.
void select_kernels(Worker& worker);

}  // namespace mnist_train::app
