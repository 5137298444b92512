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

/// The operation of all ranks that a rank waits in, or its GPU.
enum class Wait : std::uint32_t {
  kNothing,
  kAllReduce,
  kBroadcast,
  kTextExchange,
  kSampleExchange,
  kAveraging,
  kBackward,  // with averaging in it
  kDevice,    // its GPU, which may wait for those of others
};

/// Returns the operation's name for messages, such as "all-reduce".
const char* wait_name(Wait wait);

/// The progress of one rank, in memory that it shares with its launcher. Lock-free: the rank
/// writes, the launcher reads. Each rank has its own cache line.
struct alignas(64) RankStatus {
  std::atomic<Phase> phase{Phase::kStarting};
  std::atomic<Wait> wait{Wait::kNothing};
  std::atomic<std::int64_t> epoch{0};
  std::atomic<std::int64_t> step{0};   // of the run
  std::atomic<std::int64_t> batch{0};  // of an evaluation, from 1
  std::atomic<double> updated_s{0};    // CLOCK_MONOTONIC
  std::atomic<double> stepped_s{0};    // total time of training steps
  std::atomic<double> waited_s{0};     // of that, waiting for other ranks
  std::atomic<std::int64_t> waits{0};  // begun or ended
};

/// One RankStatus for each local rank, in a memory file that the launcher creates and its ranks
/// inherit.
class StatusBoard {
 public:
  /// Creates a board for `ranks` ranks. Throws Error(kRunFailed).
  static StatusBoard create(int ranks);
  /// Maps the board of an inherited descriptor, or creates a private one if `fd` is -1 because
  /// another launcher started this rank.
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

/// Records the rank's progress. Must be called at least once in every step and evaluation batch.
void update(RankStatus& status, Phase phase, std::int64_t epoch, std::int64_t step,
            std::int64_t batch = 0);

/// Adds the time of a training step.
void note_step(RankStatus& status, double seconds);

/// Returns the rank's progress for messages: "step 120 (epoch 2)", "the evaluation of epoch 2,
/// batch 7", "rendezvous".
std::string describe(const RankStatus& status);

/// Shows a wait on the board during its lifetime.
class WaitScope {
 public:
  /// A no-op if `status` is null.
  WaitScope(RankStatus* status, Wait wait);
  WaitScope(const WaitScope&) = delete;
  WaitScope& operator=(const WaitScope&) = delete;
  ~WaitScope();

 private:
  RankStatus* status_;
  Wait own_;
  Wait before_ = Wait::kNothing;
  double begin_s_ = 0;
};

// How ranks fail.

/// Why a worker ended, as it tells its launcher in one write to a pipe.
struct FailureReport {
  ExitCode code = ExitCode::kRunFailed;
  std::string message;
  std::string host;
  bool is_victim = false;  // it failed only because another rank did
};

/// Returns "out of memory: " and what to lower in this phase. `used_up` names the limit, if the
/// kernel killed the process for it (MemoryKills).
std::string out_of_memory(Phase phase, const std::string& used_up = "");

/// Returns the report as JSON of at most 64 KiB, which fits into a pipe that nobody reads yet; a
/// longer message is cut.
std::string to_text(const FailureReport& failure);

/// Parses the output of `to_text`; nothing if the process died before it had written all of it.
std::optional<FailureReport> failure_from_text(const std::string& text);

/// Returns the report for an exception that ended this process in a phase.
FailureReport report_for(const std::exception& error, Phase phase = Phase::kStarting);

/// Returns whether the user must fix the cause, in the config, the data or a file of weights. Such
/// a message is complete: which process met it first does not matter.
bool is_users_mistake(ExitCode code, Phase phase);

/// Tells torchrun, and programs that follow its convention, why this process ends: writes the file
/// that TORCHELASTIC_ERROR_FILE names, in torchrun's format. A no-op if the variable is not set; a
/// file that cannot be written is a warning.
void write_elastic_error_file(const std::string& message);

/// How a worker ended.
struct WorkerExit {
  int code = 0;                          // exit status, if `signal` is 0
  int signal = 0;                        // the one that killed it, else 0
  std::optional<FailureReport> failure;  // reported before it ended
};

/// How one rank ended, as its launcher saw it.
struct RankEnd {
  int rank = 0;
  pid_t pid = 0;
  WorkerExit exit;
  bool killed_by_launcher = false;
  bool succeeded = false;
};

/// A rank without progress.
struct StalledRank {
  int rank = 0;
  double seconds = 0;        // since its last progress
  bool stopped = false;      // by a signal or a debugger
  double others_wait_s = 0;  // if this rank does progress: the longest wait of another one for it
};

/// Returns the rank that holds up the others: ranks that wait for one another stall together. It is
/// one that was stopped, else one that waits for nobody, else one that waits for its GPU, which may
/// wait for another rank's, else the one furthest behind, else the one stalled longest. `ranks` are
/// all that run, at least one.
StalledRank find_culprit(const std::vector<StalledRank>& ranks, const StatusBoard& board);

/// Why an attempt failed: one rank is the cause, others may be its victims.
struct RunFailure {
  ExitCode code = ExitCode::kRunFailed;
  std::optional<int> rank;  // whose process failed; none for a user's mistake
  std::string cause;    // "rank 1 (pid 123) was killed by signal 9 (Killed) in step 120 (epoch 2)"
  std::string victims;  // one line each, may be empty
  bool died_without_report = false;  // the rank's log may say more
  bool was_killed = false;           // by SIGKILL, or with the fork server before it began
  Phase phase = Phase::kStarting;    // of the rank
  bool restart_may_help = false;     // a process was lost or hung; a mistake would only recur
};

/// Finds the cause among the ranks' ends, which are in order of time: the stalled rank, else the
/// first that failed by itself (was killed, crashed, exited early or reported its own error), else
/// the first victim. At least one rank must have failed.
RunFailure summarize_failure(const std::vector<RankEnd>& ends,
                             const std::optional<StalledRank>& stalled, const StatusBoard& board);

}  // namespace mnist_train::launch
