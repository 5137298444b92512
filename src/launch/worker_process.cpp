#include "launch/worker_process.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdlib>

#include "base/cgroups.h"
#include "base/shared_library.h"
#include "base/system.h"
#include "launch/fork_server.h"

namespace mnist_train::launch {

namespace fs = std::filesystem;

namespace {

constexpr const char* kWorkerName = "mnist-train-worker";

/// Plans the standard streams. Standard error goes to the rank's log file, if it has one, so that
/// the output of native code is kept as well.
void plan_standard_streams(const WorkerSetup& setup, int rank, RankPlan& plan) {
  const UniqueFd null(::open("/dev/null", O_RDWR | O_CLOEXEC));
  if (!null.valid()) throw_errno("open /dev/null");
  plan.descriptors.emplace_back(copy_above_targets(null.get()), STDIN_FILENO);
  int out = rank == 0 ? setup.output_fd : STDERR_FILENO;
  UniqueFd log;
  if (setup.log_folder) {
    const fs::path path = *setup.log_folder / log_file_name(rank);
    log = UniqueFd(
        ::open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_NOFOLLOW | O_CLOEXEC, 0644));
    if (!log.valid()) throw_errno("open " + path.string());
    plan.descriptors.emplace_back(copy_above_targets(log.get()), STDERR_FILENO);
    if (rank != 0) out = log.get();
  }
  if (out >= 0) plan.descriptors.emplace_back(copy_above_targets(out), STDOUT_FILENO);
}

/// Plans a rank whose failure report goes to `failure_fd`.
RankPlan plan_rank(const WorkerSetup& setup, int rank, int failure_fd) {
  struct HandOver {
    const char* name;
    int source;
    int target;
  };
  RankPlan plan;
  plan.launcher = ::getpid();
  plan_standard_streams(setup, rank, plan);
  std::string names;
  for (const HandOver& hand_over :
       {HandOver{"job", setup.job_fd, kJobFd}, HandOver{"failure", failure_fd, kFailureFd},
        HandOver{"console", STDERR_FILENO, kConsoleFd},
        HandOver{"status", setup.status_fd, kStatusFd},
        HandOver{"dataset", setup.dataset_fd, kDatasetFd},
        HandOver{"dataset-ready", setup.dataset_ready_fd, kDatasetReadyFd},
        HandOver{"listen", rank == 0 ? setup.listen_fd : -1, kListenFd},
        HandOver{"snapshots", setup.snapshots_fd, kSnapshotsFd}}) {
    if (hand_over.source < 0) continue;
    plan.descriptors.emplace_back(copy_above_targets(hand_over.source), hand_over.target);
    names += (names.empty() ? "" : " ") + std::string(hand_over.name);
  }
  const std::string world = std::to_string(setup.world_size);
  const std::string number = std::to_string(rank);
  plan.title = "mnist-train: rank " + number;
  plan.variables = {"RANK=" + number,
                    "LOCAL_RANK=" + number,
                    "WORLD_SIZE=" + world,
                    "LOCAL_WORLD_SIZE=" + world,
                    "MASTER_ADDR=127.0.0.1",
                    "MASTER_PORT=" + std::to_string(setup.master_port),
                    std::string(kHandedOverVariable) + "=" + names};
  return plan;
}

/// Runs between fork and exec, so it makes system calls only.
[[noreturn]] void become_worker(const RankPlan& plan, const char* executable, char** arguments,
                                char** environment) {
  apply_plan(plan);
  accept_signals();
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

UniqueFd copy_above_targets(int fd) {
  constexpr int kFirstFreeFd = 64;
  UniqueFd copy(::fcntl(fd, F_DUPFD_CLOEXEC, kFirstFreeFd));
  if (!copy.valid()) throw_errno("duplicate a descriptor for a worker");
  return copy;
}

std::vector<std::string> environment_with(const std::vector<std::string>& variables) {
  std::vector<std::string> environment = variables;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string kept = *entry;
    const std::string key = kept.substr(0, kept.find('=') + 1);
    const bool is_replaced =
        std::any_of(variables.begin(), variables.end(),
                    [&key](const std::string& variable) { return variable.starts_with(key); });
    if (!is_replaced) environment.push_back(kept);
  }
  return environment;
}

std::vector<char*> pointers_to(std::vector<std::string>& texts) {
  std::vector<char*> pointers;
  pointers.reserve(texts.size() + 1);
  for (std::string& text : texts) pointers.push_back(text.data());
  pointers.push_back(nullptr);
  return pointers;
}

void die_before_launcher() {
  // The kernel counts it as half of the machine's memory. Raising it takes no privilege.
  constexpr int kScore = 500;
  std::array<char, 8> text{};
  const UniqueFd file(::open("/proc/self/oom_score_adj", O_RDWR | O_CLOEXEC));
  const ssize_t size = file.valid() ? ::read(file.get(), text.data(), text.size()) : -1;
  int now = kScore;
  if (size > 0) std::from_chars(text.data(), text.data() + size, now);
  if (now >= kScore) return;
  const char* end = std::to_chars(text.data(), text.data() + text.size(), kScore).ptr;
  (void)write_all(file.get(), text.data(), static_cast<std::size_t>(end - text.data()));
}

void apply_plan(const RankPlan& plan) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  die_before_launcher();
  if (::getppid() != plan.launcher) ::_exit(kCannotStart);  // it died before the line above
  for (const auto& [source, target] : plan.descriptors) {
    if (::dup2(source.get(), target) < 0) ::_exit(kCannotStart);
  }
}

void accept_signals() {
  // Shells start background jobs with SIGINT ignored; one that is sent is meant.
  for (const int signal : {SIGINT, SIGQUIT, SIGTERM}) ::signal(signal, SIG_DFL);
  sigset_t waiting;  // stays blocked until the rank has something to save
  ::sigemptyset(&waiting);
  ::sigaddset(&waiting, SIGUSR1);
  ::sigprocmask(SIG_SETMASK, &waiting, nullptr);
}

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

/// Reads the process id that a rank of the fork server writes when it begins, or the reason why
/// there is none.
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
