#pragma once

#include <sys/types.h>

#include <string>
#include <utility>
#include <vector>

#include "base/file.h"
#include "launch/worker_process.h"

namespace mnist_train::launch {

/// The exit code of a process that could not become a rank.
inline constexpr int kCannotStart = 126;

/// What a process needs to become a rank. It is made by the launcher, because a process between
/// fork and exec may not allocate memory.
struct RankPlan {
  std::string title;                   // as `ps` shows it
  std::vector<std::string> variables;  // "RANK=0", …, which replace those of the launcher
  std::vector<std::pair<UniqueFd, int>> descriptors;  // copies above all target numbers -> target
  pid_t launcher = 0;
};

/// Returns a copy of a descriptor whose number is above all that are handed over. Throws
/// Error(kRunFailed).
UniqueFd copy_above_targets(int fd);

/// Plans a rank whose failure report goes to `failure_fd`. Throws Error(kRunFailed).
RankPlan plan_rank(const WorkerSetup& setup, int rank, int failure_fd);

/// Returns the environment of this process with `variables` in place of those of the same names.
std::vector<std::string> environment_with(const std::vector<std::string>& variables);

/// Returns pointers to the texts and a null behind them, as execve takes an environment.
std::vector<char*> pointers_to(std::vector<std::string>& texts);

/// Lets the kernel rather kill this process than the launcher, which can say why, when memory runs
/// out. Makes system calls alone.
void die_before_launcher();

/// Gives this process, a child of the launcher, its signals, its descriptors, and the launcher's
/// life. Makes system calls alone, and ends the process where one fails.
void take_place(const RankPlan& plan);

}  // namespace mnist_train::launch
