#include "launch/worker_process.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <utility>
#include <vector>

#include "base/shared_library.h"
#include "base/system.h"

namespace mnist_train::launch {

namespace fs = std::filesystem;

namespace {

constexpr const char* kWorkerName = "mnist-train-worker";
constexpr int kFirstFreeFd = 64;  // above those that are handed over

[[noreturn]] void fail(const std::string& action) {
  throw Error(ExitCode::kRunFailed, "cannot " + action + ": " + std::strerror(errno));
}

struct HandOver {
  const char* name;
  int source;
  int target;
};

/// Everything that the child needs between fork and exec, made before the fork, because a child
/// may not allocate memory.
struct ChildPlan {
  std::string executable;
  std::vector<std::string> environment;
  std::vector<char*> environment_pointers;
  std::string title;
  std::array<char*, 2> arguments{};
  std::vector<std::pair<UniqueFd, int>> descriptors;  // copies above the target numbers -> target
  pid_t launcher = 0;
};

bool is_overridden(const std::string& entry, const std::vector<std::string>& overrides) {
  const std::string key = entry.substr(0, entry.find('=') + 1);
  for (const std::string& other : overrides) {
    if (other.compare(0, key.size(), key) == 0) return true;
  }
  return false;
}

std::vector<std::string> child_environment(const WorkerSetup& setup, int rank,
                                           const std::string& handed_over) {
  const std::string world = std::to_string(setup.world_size);
  const std::string number = std::to_string(rank);
  std::vector<std::string> environment = {
      "RANK=" + number,
      "LOCAL_RANK=" + number,
      "WORLD_SIZE=" + world,
      "LOCAL_WORLD_SIZE=" + world,
      "MASTER_ADDR=127.0.0.1",
      "MASTER_PORT=" + std::to_string(setup.master_port),
      std::string(kHandedOverVariable) + "=" + handed_over,
  };
  const std::vector<std::string> overrides = environment;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    if (!is_overridden(*entry, overrides)) environment.emplace_back(*entry);
  }
  return environment;
}

UniqueFd copy_above_targets(int fd) {
  UniqueFd copy(::fcntl(fd, F_DUPFD_CLOEXEC, kFirstFreeFd));
  if (!copy.valid()) fail("duplicate a descriptor for a worker");
  return copy;
}

/// Sends a rank's standard error to its log file, where it has one, so that what native code writes
/// is kept as well.
void plan_standard_streams(const WorkerSetup& setup, int rank, ChildPlan& plan) {
  const UniqueFd null(::open("/dev/null", O_RDWR | O_CLOEXEC));
  if (!null.valid()) fail("open /dev/null");
  plan.descriptors.emplace_back(copy_above_targets(null.get()), STDIN_FILENO);
  UniqueFd log;
  if (setup.log_folder) {
    const fs::path path = *setup.log_folder / log_file_name(rank);
    log = UniqueFd(
        ::open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_NOFOLLOW | O_CLOEXEC, 0644));
    if (!log.valid()) fail("open " + path.string());
    plan.descriptors.emplace_back(copy_above_targets(log.get()), STDERR_FILENO);
  }
  if (rank == 0 && setup.output_fd >= 0) {
    plan.descriptors.emplace_back(copy_above_targets(setup.output_fd), STDOUT_FILENO);
  }
  if (rank != 0) {
    const int out = log.valid() ? log.get() : STDERR_FILENO;
    plan.descriptors.emplace_back(copy_above_targets(out), STDOUT_FILENO);
  }
}

ChildPlan make_plan(const WorkerSetup& setup, int rank, int failure_fd) {
  ChildPlan plan;
  plan.executable = setup.executable.string();
  plan.launcher = ::getpid();
  plan_standard_streams(setup, rank, plan);
  const std::array hand_overs{
      HandOver{"job", setup.job_fd, kJobFd},
      HandOver{"failure", failure_fd, kFailureFd},
      HandOver{"console", STDERR_FILENO, kConsoleFd},
      HandOver{"status", setup.status_fd, kStatusFd},
      HandOver{"dataset", setup.dataset_fd, kDatasetFd},
      HandOver{"dataset-ready", setup.dataset_ready_fd, kDatasetReadyFd},
      HandOver{"listen", rank == 0 ? setup.listen_fd : -1, kListenFd},
  };
  std::string names;
  for (const HandOver& hand_over : hand_overs) {
    if (hand_over.source < 0) continue;
    plan.descriptors.emplace_back(copy_above_targets(hand_over.source), hand_over.target);
    names += (names.empty() ? "" : " ") + std::string(hand_over.name);
  }
  plan.title = "mnist-train: rank " + std::to_string(rank);
  plan.arguments = {plan.title.data(), nullptr};
  plan.environment = child_environment(setup, rank, names);
  for (std::string& entry : plan.environment) plan.environment_pointers.push_back(entry.data());
  plan.environment_pointers.push_back(nullptr);
  return plan;
}

/// Runs between fork and exec, so it may only make system calls.
[[noreturn]] void become_worker(const ChildPlan& plan) {
  constexpr int kCannotStart = 126;
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::getppid() != plan.launcher) ::_exit(kCannotStart);  // it died before the line above
  for (const auto& [source, target] : plan.descriptors) {
    if (::dup2(source.get(), target) < 0) ::_exit(kCannotStart);
  }
  sigset_t waiting;  // stays blocked until the rank has something to save
  ::sigemptyset(&waiting);
  ::sigaddset(&waiting, SIGUSR1);
  ::sigprocmask(SIG_SETMASK, &waiting, nullptr);
  ::execve(plan.executable.c_str(), plan.arguments.data(), plan.environment_pointers.data());
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
  if (held.valid()) (void)::fcntl(held.get(), F_DUPFD, kFirstFreeFd);
  if (::dup2(job_fd.get(), kJobFd) < 0) fail("hand the job to the worker");
  ::setenv(kHandedOverVariable, "job", /*overwrite=*/1);
  std::string title = "mnist-train";
  std::array<char*, 2> arguments{title.data(), nullptr};
  ::execv(executable.c_str(), arguments.data());
  fail("start " + executable);
}

std::string log_file_name(int rank) { return "rank-" + std::to_string(rank) + ".log"; }

WorkerProcess WorkerProcess::start(const WorkerSetup& setup, int rank) {
  std::array<int, 2> pipe{};
  if (::pipe2(pipe.data(), O_CLOEXEC) != 0) fail("make a pipe for a worker");
  WorkerProcess worker;
  worker.rank_ = rank;
  worker.failure_pipe_ = UniqueFd(pipe[0]);
  const UniqueFd failure_write_end(pipe[1]);
  ::fcntl(pipe[0], F_SETFL, O_NONBLOCK);
  const ChildPlan plan = make_plan(setup, rank, failure_write_end.get());
  const pid_t pid = ::fork();
  if (pid < 0) fail("start rank " + std::to_string(rank));
  if (pid == 0) become_worker(plan);
  worker.pid_ = pid;
  return worker;
}

WorkerProcess::WorkerProcess(WorkerProcess&& other) noexcept
    : rank_(other.rank_),
      pid_(std::exchange(other.pid_, -1)),
      failure_pipe_(std::move(other.failure_pipe_)),
      exit_(std::move(other.exit_)) {}

WorkerProcess::~WorkerProcess() {
  if (!running()) return;
  send(SIGKILL);
  ::waitpid(pid_, nullptr, 0);
}

bool WorkerProcess::is_stopped() const {
  if (!running()) return false;
  const char state = process_state(pid_).value_or(' ');
  return state == 'T' || state == 't';
}

void WorkerProcess::send(int signal) const {
  if (running()) ::kill(pid_, signal);
}

void WorkerProcess::reap() {
  if (!running()) return;
  int status = 0;
  if (::waitpid(pid_, &status, WNOHANG) != pid_) return;
  WorkerExit exit;
  if (WIFSIGNALED(status)) exit.signal = WTERMSIG(status);
  if (WIFEXITED(status)) exit.code = WEXITSTATUS(status);
  exit.failure = failure_from_text(read_available(failure_pipe_.get()));
  exit_ = std::move(exit);
}

}  // namespace mnist_train::launch
