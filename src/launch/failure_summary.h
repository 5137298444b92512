#pragma once

#include <sys/types.h>

#include <optional>
#include <string>
#include <vector>

#include "base/error.h"
#include "launch/status_board.h"
#include "launch/worker_process.h"

namespace mnist_train::launch {

/// How one rank ended, as its launcher saw it.
struct RankEnd {
  int rank = 0;
  pid_t pid = 0;
  WorkerExit exit;
  bool killed_by_launcher = false;
  bool succeeded = false;
};

/// A rank that has made no progress for a while.
struct StalledRank {
  int rank = 0;
  double seconds = 0;        // since its last progress
  bool stopped = false;      // by a signal or a debugger
  double others_wait_s = 0;  // where this rank does move: how long another one has waited
};

/// Returns which of several ranks holds up the others: ranks that wait for one another stall
/// together. It is one that was stopped, else one that waits for nobody, else the one that is
/// furthest behind, else the one that has been stalled longest. `ranks` are all that run, at least
/// one.
StalledRank find_culprit(const std::vector<StalledRank>& ranks, const StatusBoard& board);

/// Why an attempt failed: one rank is the cause, others may be its victims.
struct RunFailure {
  ExitCode code = ExitCode::kRunFailed;
  std::optional<int> rank;  // whose process failed; none for a mistake of the user's
  std::string cause;    // "rank 1 (pid 123) was killed by signal 9 (Killed) in step 120 (epoch 2)"
  std::string victims;  // a line for each, may be empty
  bool died_without_report = false;  // the rank's log may say more
  bool restart_may_help = false;  // a process was lost or hung; a mistake would only happen again
};

/// Finds the cause among the ends of the ranks, which are in the order in which they came: the
/// stalled rank, else the first that failed by itself (was killed, crashed, left early or reported
/// an error of its own), else the first victim.
RunFailure summarize_failure(const std::vector<RankEnd>& ends,
                             const std::optional<StalledRank>& stalled, const StatusBoard& board);

}  // namespace mnist_train::launch
