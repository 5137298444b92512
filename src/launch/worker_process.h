#pragma once

#include <sys/types.h>

#include <filesystem>
#include <optional>
#include <string>

#include "base/file.h"
#include "launch/failure_report.h"
#include "launch/job.h"

namespace mnist_train::launch {

/// Descriptors that a worker inherits, at these numbers, when MNIST_TRAIN_HANDED_OVER names them.
enum HandedOverFd : int {
  kJobFd = 3,           // "job": read_job
  kFailureFd = 4,       // "failure": one FailureReport goes here
  kConsoleFd = 5,       // "console": the launcher's standard error
  kStatusFd = 6,        // "status": StatusBoard
  kDatasetFd = 7,       // "dataset": the memory of a data::SharedDataset
  kDatasetReadyFd = 8,  // "dataset-ready": its pipe
  kListenFd = 9,        // "listen": rank 0's bound socket for the store
  kSnapshotsFd = 10,    // "snapshots": the memory of checkpoint::SnapshotMemory
};

inline constexpr const char* kHandedOverVariable = "MNIST_TRAIN_HANDED_OVER";

/// Returns whether this process inherited the descriptor of that name.
bool was_handed_over(const char* name);

/// Returns where the worker's executable lies. Throws Error(kRunFailed) that names the folders that
/// it is looked for in.
std::filesystem::path worker_executable();

/// Turns this process into a worker, in place, so that whoever started it keeps watching the same
/// process. `held` stays open in it. Throws Error(kRunFailed) when the worker does not start.
[[noreturn]] void exec_worker(const Job& job, UniqueFd held);

/// Returns the name of a rank's log within the folder of logs.
std::string log_file_name(int rank);

class ForkServer;

/// What all ranks of one attempt are started with. Descriptors of -1 are not handed over.
struct WorkerSetup {
  std::filesystem::path executable;
  const ForkServer* fork_server = nullptr;  // makes the ranks where there is one, else they load
  bool may_restart = false;                 // another attempt follows where a process is lost
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
/// destructor kills it where it still runs. One that a fork server makes begins a moment later; a
/// signal that is sent before reaches it then.
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
  /// Returns the descriptor that polls as readable when the rank begins, or will never.
  int begun_fd() const { return failure_pipe_.get(); }
  bool running() const { return pid_ != kNobody && !exit_.has_value(); }
  const std::optional<WorkerExit>& exit() const { return exit_; }

  /// Returns whether the process was stopped by a signal or a debugger.
  bool is_stopped() const;

  /// Sends a signal, if the rank still runs.
  void send(int signal);
  /// Collects how the rank ended, if it has.
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

}  // namespace mnist_train::launch
