#pragma once

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <stop_token>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/system.h"
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

/// Measures how long a rank makes no progress. Only time in which the observer itself was awake
/// counts: a stopped job (SIGSTOP, a frozen cgroup, a paused virtual machine) is not a hung one.
/// The observer may wake up before the rank does, so after a long sleep it counts from zero again.
class StallMeter {
 public:
  static constexpr double kLookEvery_s = 0.2;

  /// `limit_s` is the stall that the observer acts on.
  explicit StallMeter(double limit_s) : long_sleep_s_(std::max(1.0, limit_s / 4)) {}

  /// Returns the seconds without progress. Must be called about every `kLookEvery_s`.
  double look(const RankStatus& status, double now_s);

 private:
  using Progress = std::pair<double, std::int64_t>;  // time of the last update, number of waits

  double long_sleep_s_;
  Progress seen_;
  double looked_at_s_ = 0;
  double stalled_s_ = 0;
};

/// Watches a rank from a thread if no launcher of ours does: the length of its waits for other
/// ranks or its GPU, and the progress of training steps and evaluation batches. Waits then need no
/// time-outs of their own, which would also count time in which the whole job was stopped.
class ProgressWatch {
 public:
  /// Called from the thread with the seconds without progress; should end the process.
  using OnStall = std::function<void(double seconds)>;

  /// A wait may last `limit_s`. `status` must outlive the watch. Throws Error if the system refuses
  /// the thread.
  ProgressWatch(const RankStatus& status, double limit_s, OnStall on_stall);
  ProgressWatch(const ProgressWatch&) = delete;
  ProgressWatch& operator=(const ProgressWatch&) = delete;
  ~ProgressWatch();

 private:
  std::stop_source stop_;
  std::thread thread_;
};

/// Notices a rank whose own work takes so long that the others wait for it in every step. Compares
/// the ranks' time in training steps, less their waits, over windows of a few seconds. One slow
/// window may be chance, so it warns after two in a row.
class StragglerWatch {
 public:
  explicit StragglerWatch(int ranks);

  /// Must be called regularly. Returns a warning for the user, once for each slow rank.
  std::optional<std::string> check(const StatusBoard& board, double now_s);

 private:
  struct RankProgress {
    std::int64_t step = 0;
    double own_s = 0;  // total time of training steps, without waits
    bool warned = false;
  };

  std::vector<RankProgress> ranks_;  // at the begin of the window
  double checked_s_ = 0;
  std::size_t suspect_;  // none: the number of ranks
};

}  // namespace mnist_train::launch
