#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "launch/failure_summary.h"
#include "launch/status_board.h"
#include "launch/worker_process.h"

namespace mnist_train::launch {

/// How an attempt ended: neither `failure` nor `stopped_by` when all ranks did their work.
struct AttemptResult {
  std::optional<RunFailure> failure;
  int stopped_by = 0;  // SIGTERM, SIGHUP, SIGUSR1 or SIGINT, when one came
  int exit_code = 0;   // without a failure: 0, or stopped_exit_code when ranks left early
  std::int64_t furthest_step = 0;  // that any rank had begun
};

/// Something the launcher does itself meanwhile (reading the data), on another thread: started when
/// the ranks have been, over when its descriptor polls as readable or hung up.
struct BackgroundTask {
  int ready_fd = -1;  // -1: nothing to do
  std::function<void()> start;
  std::function<void()> finish;  // throws what went wrong
};

/// Takes a line for the user.
using Warn = std::function<void(const std::string& line)>;

/// Blocks the signals that `supervise` takes as events; call it before any thread or worker is
/// started.
void block_supervised_signals();

/// Starts one attempt of `setup.world_size` ranks and stays until all of them have ended. A rank
/// that dies, leaves early or shows no progress for `hang_timeout_s` ends the attempt: the others
/// get a second to say what they saw and are killed. SIGTERM, SIGHUP, SIGUSR1 and the first Ctrl-C
/// are passed on and the ranks given time to save; a second Ctrl-C kills. `warn` hears of a rank
/// that the others wait for all the time. Throws what `background.finish` throws, after ending all
/// ranks.
AttemptResult supervise(const WorkerSetup& setup, const StatusBoard& board, double hang_timeout_s,
                        const BackgroundTask& background, const Warn& warn = {});

}  // namespace mnist_train::launch
