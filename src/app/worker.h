#pragma once

#include <c10/core/Device.h>

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/system.h"
#include "comm/communicator.h"
#include "launch/job.h"
#include "launch/status_board.h"
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
  /// Returns every rank's text, by rank, on all ranks; bytes that are not UTF-8 are replaced.
  /// Collective.
  std::vector<std::string> all_gather_text(const std::string& text);
};

/// Reads the job of the front end, finds out this rank's identity, sets up logging, threads and
/// device, and connects to the other ranks. Collective. Throws Error.
std::unique_ptr<Worker> start_worker();

/// Selects our own GPU kernels, which replace operations of LibTorch: those that work on the GPUs
/// of all ranks, so that all compute alike. Logs which do not work, and why. Collective.
void select_kernels(Worker& worker);

/// Makes the signals of launch::stop_signals (SIGTERM, Ctrl-C and others) end the process at once,
/// with the exit codes of a stopped run, because there is nothing to save yet. If the process
/// `trains`, SIGUSR1, which asks for a run that resumes later, takes effect after
/// `record_stop_signals`.
void end_on_stop_signals(bool trains);

/// From now on only records the signals of launch::stop_signals, so that the ranks can agree on a
/// step after which all of them stop, save, and leave.
void record_stop_signals();

/// Returns the first recorded signal, or 0.
int stop_signal();

/// Returns 130 for Ctrl-C and 143 for SIGTERM, also if only another rank got the signal.
ExitCode stopped_exit_code();

/// Requeues the Slurm job, to resume there, if any rank got SIGUSR1: Slurm sends it as a warning
/// before the job's time ends (`sbatch --signal=USR1@SECONDS`). For a run that has stopped and
/// saved. Collective.
void requeue_if_asked(Worker& worker);

}  // namespace mnist_train::app
