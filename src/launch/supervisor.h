#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "base/cgroups.h"
#include "launch/failure_report.h"
#include "launch/status_board.h"
#include "launch/worker_process.h"

namespace mnist_train::launch {

/// How an attempt ended. If all ranks did their work, neither `failure` nor `stopped_by` is set.
struct AttemptResult {
  std::optional<RunFailure> failure;
  int stopped_by = 0;    // the signal that asked the run to stop, if one came
  int exit_code = 0;     // without a failure: 0, or stopped_exit_code if ranks exited early
  bool cut_off = false;  // a second Ctrl-C ended rank 0 before it had saved
  std::int64_t furthest_step = 0;  // begun by any rank
};

/// Work of the launcher (reading the data) on another thread. It is started after the ranks, and is
/// over when its descriptor polls as readable or hung up.
struct BackgroundTask {
  int ready_fd = -1;  // -1: there is none
  std::function<void()> start;
  std::function<void()> finish;  // throws if the work failed
};

/// Shows the user a one-line warning.
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
/// rank that dies, exits early or makes no progress for `hang_timeout_s` ends the attempt: the
/// others are killed, at once if a rank was killed and `setup.may_restart`, else after a second in
/// which they can report what they saw. The first stop signal is passed on, and the ranks get time
/// to save; a second Ctrl-C kills them. `warn` is called for a rank that slows down the others. If
/// `background.finish` throws, all ranks are ended.
AttemptResult supervise(const WorkerSetup& setup, const StatusBoard& board, double hang_timeout_s,
                        const BackgroundTask& background, const Warn& warn = {});

/// Decides which failed attempts of a run are worth another one.
class RestartPolicy {
 public:
  /// `root` is prepended to the kernel's paths, see base/cgroups.h.
  explicit RestartPolicy(const std::filesystem::path& root = "/") : memory_kills_(root) {}

  /// Names the memory limit if the kernel killed a rank for it. New ranks would meet it again
  /// unless other programs had used the memory, so one restart may help, and only after progress.
  void name_memory_limit(AttemptResult& result);

  /// Records a failed attempt, and returns whether three restarts in a row made no progress.
  bool is_futile(const AttemptResult& result);

  /// Returns the number of consecutive attempts without progress.
  int futile_attempts() const { return futile_attempts_; }
  std::int64_t furthest_step() const { return furthest_step_; }

 private:
  MemoryKills memory_kills_;
  std::optional<std::string> used_up_;  // the memory limit for which a rank was killed last
  std::int64_t furthest_step_ = -1;     // of all attempts
  int futile_attempts_ = 0;
};

}  // namespace mnist_train::launch
