#include "cli/worker_exec.h"

#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <string>

#include "launch/worker_process.h"

namespace mnist_train::cli {

void exec_worker(const launch::Job& job, UniqueFd held) {
  const std::string executable = launch::worker_executable().string();
  const UniqueFd published = launch::publish_job(job);
  // A copy, as dup2 onto the number that it may have already would leave it closed on exec.
  const UniqueFd job_fd(::fcntl(published.get(), F_DUPFD_CLOEXEC, 64));
  // Above the numbers of what is handed over, and open across exec.
  if (held.valid()) (void)::fcntl(held.get(), F_DUPFD, 64);
  if (!job_fd.valid() || ::dup2(job_fd.get(), launch::kJobFd) < 0) {
    throw Error(ExitCode::kRunFailed,
                std::string("cannot hand the job to the worker: ") + std::strerror(errno));
  }
  ::setenv(launch::kHandedOverVariable, "job", /*overwrite=*/1);
  std::string title = "mnist-train";
  std::array<char*, 2> arguments{title.data(), nullptr};
  ::execv(executable.c_str(), arguments.data());
  throw Error(ExitCode::kRunFailed, executable + ": cannot start: " + std::strerror(errno));
}

}  // namespace mnist_train::cli
