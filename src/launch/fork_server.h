#pragma once

#include <sys/types.h>

#include <filesystem>

#include "base/file.h"
#include "launch/rank_plan.h"

namespace mnist_train::launch {

/// A process that has loaded LibTorch and becomes ranks by forking, which takes milliseconds where
/// a new program takes a fifth of a second. The ranks are children of the launcher, and live on
/// should the server be killed; the server ends with the launcher.
class ForkServer {
 public:
  /// Starts the server, which loads beside the launcher. From then on this process is the
  /// parent of its descendants' orphans. Must be called on the main thread, before memory is mapped
  /// that children must not have. Throws Error(kRunFailed).
  static ForkServer start(const std::filesystem::path& executable);

  ForkServer(ForkServer&&) noexcept;
  ForkServer& operator=(ForkServer&&) = delete;
  ForkServer(const ForkServer&) = delete;
  ~ForkServer();

  /// Returns false when the server has ended.
  bool is_alive() const;
  /// Asks for a rank. It writes its process id to the pipe of its failure report when it begins; a
  /// server that cannot fork writes the error's number there, negated, and the pipe of one that has
  /// ended is closed without either. Throws Error(kRunFailed).
  void ask_for(const RankPlan& plan) const;

 private:
  ForkServer(pid_t pid, UniqueFd requests) : pid_(pid), requests_(std::move(requests)) {}

  pid_t pid_;
  UniqueFd requests_;
};

/// Serves a launcher's requests in the process that `ForkServer::start` made; does nothing in any
/// other. Returns in each rank, which has its environment and descriptors then; the server itself
/// ends here, with its launcher. `title`: argv[0], which is overwritten. Must be called before the
/// process has a second thread.
void serve_forks(char* title);

}  // namespace mnist_train::launch
