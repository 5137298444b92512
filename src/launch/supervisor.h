#pragma once

#include <netdb.h>
#include <signal.h>
#include <sys/types.h>

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <future>
#include <memory>
#include <optional>
#include <stop_token>
#include <string>
#include <utility>
#include <vector>

#include "base/file.h"
#include "base/system.h"
#include "launch/job.h"
#include "launch/status_board.h"

namespace mnist_train::launch {

// Starting ranks.

/// Numbers of the descriptors that a worker inherits if MNIST_TRAIN_HANDED_OVER names them.
enum HandedOverFd : int {
  kJobFd = 3,           // "job": read_job
  kFailureFd = 4,       // "failure": pipe for one FailureReport
  kConsoleFd = 5,       // "console": the launcher's standard error
  kStatusFd = 6,        // "status": StatusBoard
  kDatasetFd = 7,       // "dataset": the memory of a data::SharedDataset
  kDatasetReadyFd = 8,  // "dataset-ready": the pipe of the SharedDataset
  kListenFd = 9,        // "listen": rank 0's listening socket for the store
  kSnapshotsFd = 10,    // "snapshots": the memory of checkpoint::SnapshotMemory
};

/// Returns whether this process inherited the descriptor with that name.
bool was_handed_over(const char* name);

/// Returns the path of the worker's executable. Throws Error(kRunFailed) naming the searched
/// folders if it is not found.
std::filesystem::path worker_executable();

/// Replaces this process with a worker, so that its parent keeps watching the same process. `held`
/// stays open in the worker. Throws Error(kRunFailed) if the worker cannot be started.
[[noreturn]] void exec_worker(const Job& job, UniqueFd held);

std::string log_file_name(int rank);

class ForkServer;

/// The start-up parameters that all ranks of an attempt share.
struct WorkerSetup {
  std::filesystem::path executable;
  const ForkServer* fork_server = nullptr;  // forks the ranks; null: each is a new program
  bool may_restart = false;                 // a lost process may lead to a restart
  int world_size = 1;
  int master_port = 0;
  std::map<HandedOverFd, int> descriptors{};  // handed over unless -1; kListenFd only to rank 0
  int output_fd = -1;                         // for rank 0's results, instead of standard output
  std::optional<std::filesystem::path> log_folder;  // each rank's standard error goes to rank-N.log
};

/// One rank, a child of this process. The kernel kills it when this process dies, and the
/// destructor kills it if it is still running. With a fork server, the rank begins a moment after
/// `start`. A signal that ends ranks, sent before that, ends the server, which may be stopped or
/// hung; SIGUSR1 is delivered once the rank has begun.
class WorkerProcess {
 public:
  /// Starts a rank. Must be called on the main thread, because the kernel kills a child when the
  /// thread that started it exits. Throws Error(kRunFailed).
  static WorkerProcess start(const WorkerSetup& setup, int rank);

  WorkerProcess(WorkerProcess&&) noexcept;
  ~WorkerProcess();

  int rank() const { return rank_; }
  /// Returns the process ID, 0 if the rank has not begun yet, or -1 if it could not be started.
  pid_t pid() const { return pid_; }
  bool is_pending() const { return pid_ == kRequested; }
  /// Returns the descriptor that polls as readable when a pending rank begins or fails to begin.
  int started_fd() const { return failure_pipe_.get(); }
  bool running() const { return pid_ != kNoProcess && !exit_.has_value(); }
  const std::optional<WorkerExit>& exit() const { return exit_; }

  /// Returns whether the process is stopped, by a signal or a debugger.
  bool is_stopped() const;

  /// Sends a signal unless the rank has ended.
  void send(int signal);
  /// Collects the exit status and the failure report if the rank has ended.
  void reap();

 private:
  static constexpr pid_t kNoProcess = -1;
  static constexpr pid_t kRequested = 0;

  WorkerProcess() = default;
  void read_pid();

  int rank_ = 0;
  pid_t pid_ = kNoProcess;
  int signal_ = 0;                      // to send when the rank has begun
  const ForkServer* server_ = nullptr;  // forks this rank; null: none
  UniqueFd failure_pipe_;
  std::optional<WorkerExit> exit_;
};

/// Returns pointers to the strings, followed by a null pointer, as execve expects them.
std::vector<char*> pointers_to(std::vector<std::string>& texts);

struct RankPlan;

/// A process that has loaded LibTorch and forks the ranks, which takes milliseconds instead of the
/// 0.2 seconds that a new program needs. The ranks become children of the launcher and survive the
/// server; the server exits with the launcher.
class ForkServer {
 public:
  /// Starts the server, which loads LibTorch while the launcher continues. From then on this
  /// process adopts its orphaned descendants. Must be called on the main thread, like
  /// WorkerProcess::start. Throws Error(kRunFailed).
  explicit ForkServer(const std::filesystem::path& executable);
  ForkServer(const ForkServer&) = delete;
  ForkServer& operator=(const ForkServer&) = delete;
  ~ForkServer();

  /// Returns whether the server can fork ranks: it runs and is not stopped by a signal.
  bool is_alive() const;
  pid_t pid() const { return pid_; }
  /// Kills the server. The pipes of pending ranks are then closed.
  void kill() const;
  /// If the server ended on its own, other than by SIGKILL, returns how; otherwise "".
  std::string failure() const;
  /// Requests a rank, which writes its process ID to the pipe of its failure report when it begins.
  /// If the server cannot fork, it writes the negated errno instead; if the server has exited, the
  /// pipe is closed. Throws Error(kRunFailed).
  void request_rank(const RankPlan& plan) const;

 private:
  std::string executable_;
  pid_t pid_ = -1;
  UniqueFd requests_;
};

/// Serves requests if this process is a fork server; otherwise a no-op. Returns in each rank once
/// it has its environment and descriptors; does not return in the server, which exits with its
/// launcher. `title` is argv[0], which is overwritten with the rank's title. Must be called before
/// the process has a second thread.
void serve_forks(char* title);

/// A listening TCP socket. With our own launcher, rank 0 inherits one on 127.0.0.1, so that it is
/// not exposed to the network and no other process can take the port in the meantime.
struct ListenSocket {
  UniqueFd fd;
  int port = 0;
};

/// The addresses of a host, or the reason why there are none.
struct Host {
  std::shared_ptr<addrinfo> addresses;
  std::string error;
};

/// Resolves a name or an address; `port` becomes part of the addresses.
Host resolve(const std::string& name, int port = 0);

/// Listens on a free port of 127.0.0.1. Throws Error(kDistributed), also if the interface is down
/// and ranks must connect.
ListenSocket listen_on_loopback(bool connects = true);

/// Listens on the first address of `host` that belongs to this machine. Returns nothing if none
/// does, for example behind a load balancer. `host` is a name or an address. Skips loopback
/// addresses if `serves_other_hosts` is set, because Debian resolves the machine's own name to one.
/// Throws Error(kDistributed) naming the port if it cannot be used.
std::optional<ListenSocket> listen_on_host(const std::string& host, int port,
                                           bool serves_other_hosts);

// Supervising ranks.

/// How an attempt ended: normally, unless `failure` or `stopped_by` is set.
struct AttemptResult {
  std::optional<RunFailure> failure;
  int stopped_by = 0;               // the signal that asked the run to stop or killed it, if any
  int exit_code = 0;                // if none failed: 0, or stopped_exit_code if ranks exited early
  bool finished = false;            // rank 0 completed its command or, if stopped, saved the run
  bool killed_before_save = false;  // a second Ctrl-C killed rank 0 before it had saved
  std::int64_t furthest_step = 0;   // highest step that any rank has begun
};

/// Work that the launcher does on another thread: reading data. It starts after the ranks and is
/// complete when its descriptor polls as readable or hung up.
struct BackgroundTask {
  int ready_fd = -1;  // -1: no task
  std::function<void()> start;
  std::function<void()> finish;  // throws if the work failed
};

/// Shows the user a one-line warning.
using Warn = std::function<void(const std::string& line)>;

/// Returns the signals that ask a run to save and exit: SIGTERM, SIGINT, SIGQUIT, SIGUSR1, and
/// SIGHUP unless it is ignored, for example because of nohup.
std::vector<int> stop_signals();
/// Returns the same signals as a set, for sigmask functions.
sigset_t stop_signal_set();

/// Returns the exit code of a run stopped by a signal: 130 for Ctrl-C (SIGINT), 143 for the others.
int stopped_exit_code(int signal);

/// Blocks the signals that `supervise` receives as events. Must precede the first thread or worker.
void block_supervised_signals();

/// Runs one attempt: starts `setup.world_size` ranks and returns when all of them have exited. A
/// rank that dies, exits early or makes no progress for `hang_timeout_s` ends the attempt. After an
/// exit, the other ranks have a second to report their own errors before they are killed; they are
/// killed immediately after a hang, or if a signal killed a rank and `setup.may_restart` is set.
/// Stop signals are passed on, and the ranks get time to save; a second Ctrl-C (or Ctrl-\) kills
/// them. `warn` is called for a rank that slows down the others. If `background.finish` throws,
/// kills all ranks and rethrows.
AttemptResult supervise(const WorkerSetup& setup, const StatusBoard& board, double hang_timeout_s,
                        const BackgroundTask& background, const Warn& warn = {});

/// Decides whether to restart after a failed attempt.
class RestartPolicy {
 public:
  /// `root` is prepended to the kernel's paths (see base/system.h).
  explicit RestartPolicy(const std::filesystem::path& root = "/") : oom_kills_(root) {}

  /// Adds the memory limit to the failure if the kernel killed a rank because of it. New ranks
  /// would reach it again unless other programs had used the memory, so `restart_may_help` is set
  /// only after progress, and only if the previous such kill was due to another limit.
  void add_memory_limit(AttemptResult& result);

  /// Records a failed attempt, and returns whether three attempts in a row made no progress.
  bool is_futile(const AttemptResult& result);

  /// Returns the number of consecutive attempts without progress.
  int futile_attempts() const { return futile_attempts_; }
  std::int64_t furthest_step() const { return furthest_step_; }

 private:
  OomKills oom_kills_;
  std::optional<std::string> exhausted_limit_;  // the memory limit of the latest kill
  std::int64_t furthest_step_ = 0;              // of all attempts
  int futile_attempts_ = 0;
};

/// Measures how long a rank has made no progress. Counts only time during which the observer itself
/// was running, because a stopped job (SIGSTOP, a frozen cgroup, a paused virtual machine) is not
/// hung. The observer may wake up before the rank, so a long sleep resets the measured time.
class StallMeter {
 public:
  static constexpr double kSampleInterval_s = 0.2;

  /// `limit_s` is the length of a stall after which the observer acts.
  explicit StallMeter(double limit_s) : long_sleep_s_(std::max(1.0, limit_s / 4)) {}

  /// Returns the seconds without progress. Must be called about every `kSampleInterval_s`.
  double sample(const RankStatus& status, double now_s);

 private:
  using Progress = std::pair<double, std::int64_t>;  // time of the last update, number of waits

  double long_sleep_s_;
  Progress seen_;
  double sampled_at_s_ = 0;
  double stalled_s_ = 0;
};

/// Watches a rank from one of its own threads if our launcher does not: how long the rank waits for
/// other ranks or its GPU, and whether its training steps and evaluation batches make progress. Its
/// waits then need no timeouts, which would also count time while the whole job was stopped.
class ProgressWatch {
 public:
  /// Called on the watching thread with the seconds without progress; should end the process.
  using OnStall = std::function<void(double seconds)>;

  /// `limit_s` is the maximum length of a wait. `status` must outlive the watch. Throws Error if
  /// the thread cannot be started.
  ProgressWatch(const RankStatus& status, double limit_s, OnStall on_stall);
  ~ProgressWatch() { stop_.request_stop(); }

 private:
  std::stop_source stop_;
  std::future<void> watching_;  // its destructor waits
};

/// Detects a rank whose own work takes so long that the others wait for it in every step. Compares
/// the ranks' time in training steps, without waits, over windows of a few seconds. One slow window
/// may be chance, so it warns after two in a row.
class StragglerWatch {
 public:
  explicit StragglerWatch(int ranks);

  /// Must be called regularly. Returns a warning for the user, once per slow rank.
  std::optional<std::string> check(const StatusBoard& board, double now_s);

 private:
  struct RankProgress {
    std::int64_t step = 0;
    double busy_s = 0;  // total time of training steps, without waits
    bool warned = false;
  };

  std::vector<RankProgress> ranks_;  // at the start of the window
  double checked_s_ = 0;
  std::size_t suspect_;  // a rank; the number of ranks if there is none
};

}  // namespace mnist_train::launch
