#pragma once

#include <sys/types.h>

#include <atomic>
#include <cstdint>
#include <exception>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/file.h"

namespace mnist_train::launch {

enum class Phase : std::uint32_t {
  kStarting,
  kRendezvous,
  kLoadingData,
  kLoadingWeights,
  kTraining,
  kEvaluation,
  kSaving,
  kFinished,
};

/// The event that a rank waits for: the end of a collective operation or of its GPU's work.
enum class Wait : std::uint32_t {
  kNothing,
  kAllReduce,
  kBroadcast,
  kTextExchange,
  kSampleExchange,
  kAveraging,
  kBackward,  // including gradient averaging
  kDevice,    // its GPU, which may wait for other ranks' GPUs
};

/// Returns the operation's name for messages, such as "all-reduce".
const char* wait_name(Wait wait);

/// The progress of one rank, in memory shared with its launcher. Lock-free: the rank writes, the
/// launcher reads. Each rank has its own cache line.
struct alignas(64) RankStatus {
  std::atomic<Phase> phase{Phase::kStarting};
  std::atomic<Wait> wait{Wait::kNothing};
  std::atomic<std::int64_t> epoch{0};
  std::atomic<std::int64_t> step{0};   // of the run
  std::atomic<std::int64_t> batch{0};  // of an evaluation, from 1; else a progress counter
  std::atomic<double> updated_s{0};    // CLOCK_MONOTONIC
  std::atomic<double> stepped_s{0};    // total time of training steps
  std::atomic<double> waited_s{0};     // part of stepped_s: in waits other than kDevice
  std::atomic<std::int64_t> waits{0};  // waits begun plus waits ended
};

/// One RankStatus per local rank, in an in-memory file that the launcher creates and ranks inherit.
class StatusBoard {
 public:
  /// Throws Error(kRunFailed).
  static StatusBoard create(int ranks);
  /// Maps the board from an inherited descriptor. If `fd` is -1, because another launcher started
  /// this rank, creates a private board.
  static StatusBoard attach(int fd, int ranks);

  int fd() const { return fd_.get(); }
  RankStatus& of(int local_rank) { return statuses_[local_rank]; }
  const RankStatus& of(int local_rank) const { return statuses_[local_rank]; }

 private:
  StatusBoard(UniqueFd fd, int ranks, bool is_new);

  UniqueFd fd_;
  std::shared_ptr<std::uint8_t> memory_;
  RankStatus* statuses_ = nullptr;  // in memory_
};

/// Records the rank's progress. Must be called at least once per step and evaluation batch.
void update(RankStatus& status, Phase phase, std::int64_t epoch, std::int64_t step,
            std::int64_t batch = 0);

/// Returns the rank's progress for messages: "step 120 (epoch 2)", "the evaluation of epoch 2,
/// batch 7", "rendezvous".
std::string describe(const RankStatus& status);

/// Shows a wait on the board for as long as this object exists.
class WaitScope {
 public:
  /// A no-op if `status` is null.
  WaitScope(RankStatus* status, Wait wait);
  WaitScope(const WaitScope&) = delete;
  WaitScope& operator=(const WaitScope&) = delete;
  ~WaitScope();

 private:
  RankStatus* status_;
  Wait wait_;
  Wait before_ = Wait::kNothing;
  double begin_s_ = 0;
};

// Failures of ranks.

/// Why a worker failed. The worker sends this to its launcher through a pipe.
struct FailureReport {
  ExitCode code = ExitCode::kRunFailed;
  std::string message;
  std::string host;
  bool is_victim = false;  // failed only because another rank did
};

/// Returns "out of memory: " followed by advice for this phase. `exhausted_limit` is the memory
/// limit if the kernel killed the process because of it (see OomKills).
std::string out_of_memory(Phase phase, const std::string& exhausted_limit = "");

/// Returns the report as JSON of at most 64 KiB, which fits into a pipe that is not being read yet.
/// Long messages are truncated.
std::string to_text(const FailureReport& failure);

/// Parses the output of `to_text`; nothing if it is incomplete or from another program.
std::optional<FailureReport> failure_from_text(const std::string& text);

/// Returns the report for an exception that ended this process in a phase.
FailureReport report_for(const std::exception& error, Phase phase = Phase::kStarting);

/// Returns whether the user must fix the cause, in the config, the data or a weight file. Messages
/// about user errors do not name a process: it does not matter which one detected the error first.
bool is_user_error(ExitCode code, Phase phase);

/// Reports to torchrun, and to programs that follow its convention, why this process fails: writes
/// the file that TORCHELASTIC_ERROR_FILE names, in torchrun's format. A no-op if the variable is
/// not set. If the file cannot be written, logs a warning.
void write_elastic_error_file(const std::string& message);

/// How a worker ended.
struct WorkerExit {
  int code = 0;                          // exit status if `signal` is 0
  int signal = 0;                        // the signal that killed it, else 0
  std::optional<FailureReport> failure;  // reported before it exited
};

/// How one rank ended, as its launcher saw it.
struct RankEnd {
  int rank = 0;
  pid_t pid = 0;
  WorkerExit exit;
  bool killed_by_launcher = false;
  bool succeeded = false;
};

/// A running rank, and how long it has made no progress.
struct StalledRank {
  int rank = 0;
  double seconds = 0;        // since its last progress
  bool stopped = false;      // by a signal or a debugger
  double others_wait_s = 0;  // if this rank still makes progress: the longest wait for it
};

/// Returns the rank that holds up the others: ranks that wait for one another stall together.
/// Prefers a stopped rank, then one that waits for nothing, then one that waits for its GPU (which
/// may wait for another rank's GPU), then the rank furthest behind, then the one stalled longest.
/// `ranks` contains all running ranks, at least one.
StalledRank find_culprit(const std::vector<StalledRank>& ranks, const StatusBoard& board);

/// Why an attempt failed: one rank is the cause, and others may be its victims.
struct RunFailure {
  ExitCode code = ExitCode::kRunFailed;
  std::optional<int> rank;  // the one that failed; none for a user's mistake or launcher error
  std::string cause;    // "rank 1 (pid 123) was killed by signal 9 (Killed) in step 120 (epoch 2)"
  std::string victims;  // and other consequences, one line each; may be empty
  bool died_without_report = false;  // the rank's log may say more
  bool was_killed = false;           // by SIGKILL or, with the fork server, before it began
  Phase phase = Phase::kStarting;    // of the rank
  bool restart_may_help = false;     // a process was lost or hung; mistakes would recur
};

/// Determines the cause of a failed attempt: the stalled rank or, failing that, the first rank that
/// failed on its own (was killed, crashed, exited early or reported its own error), or else the
/// first victim. `ends` is in chronological order; without `stalled`, a rank must have failed.
RunFailure summarize_failure(const std::vector<RankEnd>& ends,
                             const std::optional<StalledRank>& stalled, const StatusBoard& board);

}  // namespace mnist_train::launch
