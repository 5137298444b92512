#pragma once

#include <sys/types.h>

#include <filesystem>

#include "base/file.h"
#include "launch/worker_process.h"

namespace mnist_train::launch {

/// A process that has loaded LibTorch and forks the ranks, which takes milliseconds instead of the
/// fifth of a second of a new program. The ranks become children of the launcher and survive the
/// server; the server ends with the launcher.
class ForkServer {
 public:
  /// Starts the server, which loads LibTorch while the launcher continues. From then on this
  /// process adopts its descendants' orphans. Must be called on the main thread, before memory is
  /// mapped that children must not inherit. Throws Error(kRunFailed).
  static ForkServer start(const std::filesystem::path& executable);

  ForkServer(ForkServer&&) noexcept;
  ForkServer& operator=(ForkServer&&) = delete;
  ForkServer(const ForkServer&) = delete;
  ~ForkServer();

  bool is_alive() const;
  /// Requests a rank, which writes its process id to the pipe of its failure report when it begins.
  /// If the server cannot fork, it writes the negated errno there; if it has ended, the pipe is
  /// closed. Throws Error(kRunFailed).
  void ask_for(const RankPlan& plan) const;

 private:
  ForkServer(pid_t pid, UniqueFd requests) : pid_(pid), requests_(std::move(requests)) {}

  pid_t pid_;
  UniqueFd requests_;
};

/// Serves requests if this process is a fork server; does nothing in any other. Returns in each
/// rank, once it has its environment and descriptors; the server itself ends here, with its
/// launcher. `title`: argv[0], which is overwritten. Must be called before the process has a second
/// thread.
void serve_forks(char* title);

}  // namespace mnist_train::launch
