#pragma once

#include <sys/types.h>

#include <filesystem>
#include <optional>
#include <string>

#include "base/file.h"
#include "launch/failure_report.h"

namespace mnist_train::launch {

/// Descriptors that a worker finds open, at these numbers, when MNIST_TRAIN_HANDED_OVER names them.
enum HandedOverFd : int {
  kJobFd = 3,           // "job": read_job
  kFailureFd = 4,       // "failure": one FailureReport goes here
  kConsoleFd = 5,       // "console": the launcher's standard error
  kStatusFd = 6,        // "status": StatusBoard
  kDatasetFd = 7,       // "dataset": the memory of a data::SharedDataset
  kDatasetReadyFd = 8,  // "dataset-ready": its pipe
  kListenFd = 9,        // "listen": rank 0's bound socket for the store
};

inline constexpr const char* kHandedOverVariable = "MNIST_TRAIN_HANDED_OVER";

/// Whether this process was handed the descriptor of that name.
bool was_handed_over(const char* name);

/// Lies beside the worker's executable where GPUs can be used.
inline constexpr const char* kCudaModule = "libmnist-train-cuda.so";

/// The worker's executable: beside the running one, or in ../libexec/mnist-train. Throws
/// Error(kRunFailed) naming both.
std::filesystem::path worker_executable();

/// Of a rank's own log, within the folder of logs.
std::string log_file_name(int rank);

/// What all ranks of one attempt are started with. Descriptors of -1 are not handed over.
struct WorkerSetup {
  std::filesystem::path executable;
  int world_size = 1;
  int master_port = 0;
  int job_fd = -1;
  int status_fd = -1;
  int dataset_fd = -1;
  int dataset_ready_fd = -1;
  int listen_fd = -1;  // rank 0 only
  int output_fd = -1;  // rank 0 writes its results there instead of to standard output
  std::optional<std::filesystem::path>
      log_folder;  // rank-N.log takes what a rank writes to standard error
};

/// How a worker ended.
struct WorkerExit {
  int code = 0;    // exit status, when `signal` is 0
  int signal = 0;  // what killed it
  std::optional<FailureReport> report;
};

/// One rank, a direct child of this process. The kernel kills it when this process dies. Its
/// descriptors poll as readable when it ends. Destroying a running one kills it.
class WorkerProcess {
 public:
  /// Must be called on the main thread: the kernel ties a child's life to the thread that made it.
  /// Throws Error(kRunFailed).
  static WorkerProcess start(const WorkerSetup& setup, int rank);

  WorkerProcess(WorkerProcess&&) noexcept;
  WorkerProcess(const WorkerProcess&) = delete;
  WorkerProcess& operator=(const WorkerProcess&) = delete;
  ~WorkerProcess();

  int rank() const { return rank_; }
  pid_t pid() const { return pid_; }
  int exit_fd() const { return pid_fd_.get(); }
  bool running() const { return pid_ > 0 && !exit_.has_value(); }
  const std::optional<WorkerExit>& exit() const { return exit_; }

  /// Whether it was stopped by a signal or a debugger.
  bool is_stopped() const;

  void send(int signal) const;
  /// Takes note of the end, if it has come.
  void reap();

 private:
  WorkerProcess() = default;

  int rank_ = 0;
  pid_t pid_ = -1;
  UniqueFd pid_fd_;
  UniqueFd failure_pipe_;
  std::optional<WorkerExit> exit_;
};

}  // namespace mnist_train::launch
