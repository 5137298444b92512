#pragma once

#include <sys/types.h>

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "base/file.h"
#include "launch/job.h"
#include "launch/status_board.h"

namespace mnist_train::launch {

/// Descriptors that a worker inherits, at these numbers, if MNIST_TRAIN_HANDED_OVER names them.
enum HandedOverFd : int {
  kJobFd = 3,           // "job": read_job
  kFailureFd = 4,       // "failure": takes one FailureReport
  kConsoleFd = 5,       // "console": the launcher's standard error
  kStatusFd = 6,        // "status": StatusBoard
  kDatasetFd = 7,       // "dataset": the memory of a data::SharedDataset
  kDatasetReadyFd = 8,  // "dataset-ready": its pipe
  kListenFd = 9,        // "listen": rank 0's bound socket for the store
  kSnapshotsFd = 10,    // "snapshots": the memory of checkpoint::SnapshotMemory
};

/// Returns whether this process inherited the descriptor of that name.
bool was_handed_over(const char* name);

/// Returns the path of the worker's executable. Throws Error(kRunFailed) that names the folders in
/// which it was not found.
std::filesystem::path worker_executable();

/// Replaces this process by a worker, so that its parent keeps watching the same process. `held`
/// stays open in it. Throws Error(kRunFailed) if the worker does not start.
[[noreturn]] void exec_worker(const Job& job, UniqueFd held);

/// Returns the name of a rank's log in the folder of logs.
std::string log_file_name(int rank);

class ForkServer;

/// The common start-up parameters of all ranks of one attempt. Descriptors of -1 are not handed
/// over.
struct WorkerSetup {
  std::filesystem::path executable;
  const ForkServer* fork_server = nullptr;  // forks the ranks; if null, they are started afresh
  bool may_restart = false;                 // a lost process leads to another attempt
  int world_size = 1;
  int master_port = 0;
  int job_fd = -1;
  int status_fd = -1;
  int dataset_fd = -1;
  int dataset_ready_fd = -1;
  int listen_fd = -1;  // rank 0 only
  int snapshots_fd = -1;
  int output_fd = -1;  // rank 0 writes its results there instead of to standard output
  std::optional<std::filesystem::path> log_folder;  // for the ranks' standard error, rank-N.log
};

/// One rank, a child of this process. The kernel kills it when this process dies, and the
/// destructor if it still runs. A fork server starts it a moment later; a signal sent before that
/// is delivered then.
class WorkerProcess {
 public:
  /// Starts a rank. Must be called on the main thread: the kernel ties a child's life to the thread
  /// that started it. Throws Error(kRunFailed).
  static WorkerProcess start(const WorkerSetup& setup, int rank);

  WorkerProcess(WorkerProcess&&) noexcept;
  WorkerProcess(const WorkerProcess&) = delete;
  WorkerProcess& operator=(const WorkerProcess&) = delete;
  ~WorkerProcess();

  int rank() const { return rank_; }
  /// Returns the process id, 0 before the rank has begun.
  pid_t pid() const { return pid_; }
  bool has_begun() const { return pid_ != kAskedFor; }
  /// Returns the descriptor that polls as readable when the rank begins or fails to.
  int begun_fd() const { return failure_pipe_.get(); }
  bool running() const { return pid_ != kNobody && !exit_.has_value(); }
  const std::optional<WorkerExit>& exit() const { return exit_; }

  /// Returns whether the process is stopped, by a signal or a debugger.
  bool is_stopped() const;

  /// Sends a signal if the rank still runs.
  void send(int signal);
  /// Collects the exit status if the rank has ended.
  void reap();

 private:
  static constexpr pid_t kNobody = -1;
  static constexpr pid_t kAskedFor = 0;

  WorkerProcess() = default;
  void learn_pid();

  int rank_ = 0;
  pid_t pid_ = kAskedFor;
  int signal_ = 0;  // to send when the rank has begun
  UniqueFd failure_pipe_;
  std::optional<WorkerExit> exit_;
};

/// Returns pointers to the texts and a final null, as execve expects them.
std::vector<char*> pointers_to(std::vector<std::string>& texts);

struct RankPlan;

/// A process that has loaded LibTorch and forks the ranks, which takes milliseconds instead of the
/// fifth of a second of a new program. The ranks become children of the launcher and survive the
/// server; the server ends with the launcher.
class ForkServer {
 public:
  /// Starts the server, which loads LibTorch while the launcher continues. From then on this
  /// process adopts its descendants' orphans. Must be called on the main thread, before memory is
  /// mapped that children must not inherit. Throws Error(kRunFailed).
  explicit ForkServer(const std::filesystem::path& executable);
  ForkServer(const ForkServer&) = delete;
  ForkServer& operator=(const ForkServer&) = delete;
  ~ForkServer();

  bool is_alive() const;
  /// Requests a rank, which writes its process id to the pipe of its failure report when it begins.
  /// If the server cannot fork, it writes the negated errno there; if it has ended, the pipe is
  /// closed. Throws Error(kRunFailed).
  void ask_for(const RankPlan& plan) const;

 private:
  pid_t pid_ = -1;
  UniqueFd requests_;
};

/// Serves requests if this process is a fork server; does nothing in any other. Returns in each
/// rank, once it has its environment and descriptors; the server itself ends here, with its
/// launcher. `title`: argv[0], which is overwritten. Must be called before the process has a second
/// thread.
void serve_forks(char* title);

/// A listening TCP socket. Rank 0 of our own launcher inherits one on 127.0.0.1: nothing is
/// exposed, and no other process can take the port in between.
struct ListenSocket {
  UniqueFd fd;
  int port = 0;
};

/// Listens on a free port of 127.0.0.1. Throws Error(kDistributed).
ListenSocket listen_on_loopback();

/// Listens on the one address that `host`, a name or an address, has on this machine. Returns
/// nothing if it has none here, as behind a load balancer. With `serves_other_hosts` loopback
/// addresses do not count: Debian gives one to the machine's own name. Throws Error(kDistributed)
/// that names a port in use.
std::optional<ListenSocket> listen_on_host(const std::string& host, int port,
                                           bool serves_other_hosts);

}  // namespace mnist_train::launch
