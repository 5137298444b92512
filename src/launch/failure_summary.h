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
  bool well = false;
};

/// A rank that showed no progress.
struct Silence {
  int rank = 0;
  double seconds = 0;
  bool stopped = false;  // by a signal or a debugger
  double others_s = 0;   // how long another one has waited, where this one still moves
};

/// Ranks that wait for one another fall silent together. Which of them keeps the others waiting:
/// one that was stopped, else one that waits for nobody, else the one that has come least far, else
/// the longest silent. `ranks` are all that run, at least one.
Silence most_suspect(const std::vector<Silence>& ranks, const StatusBoard& board);

/// Why an attempt did not end well: one rank is the cause, others may be its victims.
struct RunFailure {
  ExitCode code = ExitCode::kRunFailed;
  int rank = 0;
  std::string cause;    // "rank 1 (pid 123) was killed by signal 9 (Killed) in step 120 (epoch 2)"
  std::string victims;  // a line each, may be empty
  bool died_silently = false;     // its log may say more
  bool restart_may_help = false;  // a lost or silent process, not a mistake that would repeat
};

/// Picks the cause from the ends in the order they came: a silent rank, else the first that failed
/// by itself (killed, crashed, left early or reported an error of its own), else the first victim.
RunFailure summarize_failure(const std::vector<RankEnd>& ends,
                             const std::optional<Silence>& silence, const StatusBoard& board);

}  // namespace mnist_train::launch
