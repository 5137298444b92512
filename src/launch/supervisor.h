#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "launch/failure_report.h"
#include "launch/status_board.h"
#include "launch/worker_process.h"

namespace mnist_train::launch {

/// How an attempt ended. Neither `failure` nor `stopped_by` is set when all ranks did their work.
struct AttemptResult {
  std::optional<RunFailure> failure;
  int stopped_by = 0;    // the signal that asked the run to stop, when one came
  int exit_code = 0;     // without a failure: 0, or stopped_exit_code when ranks left early
  bool cut_off = false;  // a second Ctrl-C ended rank 0 before it had saved
  std::int64_t furthest_step = 0;  // that any rank had begun
};

/// Work of the launcher's own (reading the data) that runs on another thread beside the ranks. It
/// is started after them, and is over when its descriptor polls as readable or hung up.
struct BackgroundTask {
  int ready_fd = -1;  // -1: there is none
  std::function<void()> start;
  std::function<void()> finish;  // throws what went wrong
};

/// Shows the user a warning of one line.
using Warn = std::function<void(const std::string& line)>;

/// Returns the signals that ask a run to save and end: SIGTERM, SIGINT, SIGQUIT, SIGUSR1, and
/// SIGHUP unless it is ignored, as nohup makes it.
std::vector<int> stop_signals();

/// Returns the exit code of a run that a signal stopped: 130 after Ctrl-C, 143 after the others.
int stopped_exit_code(int signal);

/// Blocks the signals that `supervise` receives as events. Must be called before any thread or
/// worker is started.
void block_supervised_signals();

/// Runs one attempt: starts `setup.world_size` ranks and returns when all of them have ended. A
/// rank that dies, leaves early or makes no progress for `hang_timeout_s` ends the attempt: the
/// others are killed, at once where a rank was killed and `setup.may_restart`, else after a second
/// in which they report what they saw. The first stop signal is passed on, and the ranks get time
/// to save; a second Ctrl-C kills them. `warn` is told of a rank that slows down the others. Throws
/// what `background.finish` throws, after ending all ranks.
AttemptResult supervise(const WorkerSetup& setup, const StatusBoard& board, double hang_timeout_s,
                        const BackgroundTask& background, const Warn& warn = {});

}  // namespace mnist_train::launch
