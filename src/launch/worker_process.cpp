#include "launch/worker_process.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cstdlib>
#include <utility>
#include <vector>

#include "base/limits.h"
#include "base/shared_library.h"
#include "base/system.h"
#include "launch/fork_server.h"
#include "launch/rank_plan.h"

namespace mnist_train::launch {

namespace fs = std::filesystem;

namespace {

constexpr const char* kWorkerName = "mnist-train-worker";

/// Runs between fork and exec, so it may only make system calls.
[[noreturn]] void become_worker(const RankPlan& plan, const char* executable, char** arguments,
                                char** environment) {
  take_place(plan);
  ::execve(executable, arguments, environment);
  ::_exit(kCannotStart);
}

std::string read_available(int fd) {
  std::string text;
  std::array<char, 4096> buffer{};
  ssize_t count = 0;
  while ((count = ::read(fd, buffer.data(), buffer.size())) > 0) {
    text.append(buffer.data(), static_cast<std::size_t>(count));
  }
  return text;
}

}  // namespace

bool was_handed_over(const char* name) {
  const std::string all = " " + environment_variable(kHandedOverVariable).value_or("") + " ";
  return all.find(" " + std::string(name) + " ") != std::string::npos;
}

fs::path worker_executable() {
  fs::path found = find_program_file(kWorkerName);
  if (!found.empty()) return found;
  throw Error(ExitCode::kRunFailed,
              std::string("cannot find ") + kWorkerName + " beside " +
                  (executable_folder() / "mnist-train").string() +
                  " or in ../libexec/mnist-train; build or install it again (scripts/setup)");
}

void exec_worker(const Job& job, UniqueFd held) {
  const std::string executable = worker_executable().string();
  const UniqueFd published = publish_job(job);
  // Another copy: dup2 onto its own number would leave the descriptor closed on exec.
  const UniqueFd job_fd = copy_above_targets(published.get());
  // Above the numbers of what is handed over, and open across exec.
  const UniqueFd kept = held.valid() ? copy_above_targets(held.get()) : UniqueFd();
  if (kept.valid()) ::fcntl(kept.get(), F_SETFD, 0);
  if (::dup2(job_fd.get(), kJobFd) < 0) throw_errno("hand the job to the worker");
  ::setenv(kHandedOverVariable, "job", /*overwrite=*/1);
  std::string title = "mnist-train";
  std::array<char*, 2> arguments{title.data(), nullptr};
  ::execv(executable.c_str(), arguments.data());
  throw_errno("start " + executable);
}

std::string log_file_name(int rank) { return "rank-" + std::to_string(rank) + ".log"; }

WorkerProcess WorkerProcess::start(const WorkerSetup& setup, int rank) {
  std::array<int, 2> pipe{};
  if (::pipe2(pipe.data(), O_CLOEXEC) != 0) throw_errno("make a pipe for a worker");
  WorkerProcess worker;
  worker.rank_ = rank;
  worker.failure_pipe_ = UniqueFd(pipe[0]);
  const UniqueFd failure_write_end(pipe[1]);
  ::fcntl(pipe[0], F_SETFL, O_NONBLOCK);
  RankPlan plan = plan_rank(setup, rank, failure_write_end.get());
  if (setup.fork_server != nullptr) {
    setup.fork_server->ask_for(plan);
    return worker;
  }
  std::vector<std::string> variables = environment_with(plan.variables);
  std::vector<char*> environment = pointers_to(variables);
  std::array<char*, 2> arguments{plan.title.data(), nullptr};
  const std::string executable = setup.executable.string();
  const pid_t pid = ::fork();
  if (pid < 0) throw_errno("start rank " + std::to_string(rank));
  if (pid == 0) become_worker(plan, executable.c_str(), arguments.data(), environment.data());
  worker.pid_ = pid;
  return worker;
}

WorkerProcess::WorkerProcess(WorkerProcess&& other) noexcept
    : rank_(other.rank_),
      pid_(std::exchange(other.pid_, kNobody)),
      signal_(other.signal_),
      failure_pipe_(std::move(other.failure_pipe_)),
      exit_(std::move(other.exit_)) {}

WorkerProcess::~WorkerProcess() {
  if (!running()) return;
  send(SIGKILL);
  for (pollfd begun{failure_pipe_.get(), POLLIN, 0}; pid_ == kAskedFor; learn_pid()) {
    ::poll(&begun, 1, /*milliseconds=*/-1);
  }
  if (pid_ > 0) ::waitpid(pid_, nullptr, 0);
}

/// Reads the process id that a rank of the fork server's writes when it begins, or why there is
/// none.
void WorkerProcess::learn_pid() {
  if (pid_ != kAskedFor) return;
  pid_t pid = kNobody;
  const ssize_t size = ::read(failure_pipe_.get(), &pid, sizeof pid);
  if (size < 0) return;  // not yet
  if (size != sizeof pid || pid < 0) {
    exit_ = WorkerExit{};
    exit_->code = kCannotStart;
    if (size == sizeof pid) {
      exit_->failure = {ExitCode::kRunFailed, "cannot fork: " + error_text(-pid), host_name()};
    }
    pid_ = kNobody;
    return;
  }
  pid_ = pid;
  if (signal_ != 0) ::kill(pid_, signal_);
}

bool WorkerProcess::is_stopped() const {
  if (!running() || pid_ == kAskedFor) return false;
  const char state = process_state(pid_).value_or(' ');
  return state == 'T' || state == 't';
}

void WorkerProcess::send(int signal) {
  learn_pid();
  if (!running()) return;
  if (pid_ > 0) {
    ::kill(pid_, signal);
  } else if (signal_ != SIGKILL) {
    signal_ = signal;
  }
}

void WorkerProcess::reap() {
  learn_pid();
  if (!running() || pid_ == kAskedFor) return;
  int status = 0;
  if (::waitpid(pid_, &status, WNOHANG) != pid_) return;
  WorkerExit exit;
  if (WIFSIGNALED(status)) exit.signal = WTERMSIG(status);
  if (WIFEXITED(status)) exit.code = WEXITSTATUS(status);
  exit.failure = failure_from_text(read_available(failure_pipe_.get()));
  exit_ = std::move(exit);
}

}  // namespace mnist_train::launch
