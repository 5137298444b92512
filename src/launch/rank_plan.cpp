#include "launch/rank_plan.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <array>
#include <charconv>

namespace mnist_train::launch {

namespace fs = std::filesystem;

namespace {

constexpr int kFirstFreeFd = 64;  // above those that are handed over

struct HandOver {
  const char* name;
  int source;
  int target;
};

/// Sends a rank's standard error to its log file, where it has one, so that what native code writes
/// is kept as well.
void plan_standard_streams(const WorkerSetup& setup, int rank, RankPlan& plan) {
  const UniqueFd null(::open("/dev/null", O_RDWR | O_CLOEXEC));
  if (!null.valid()) throw_errno("open /dev/null");
  plan.descriptors.emplace_back(copy_above_targets(null.get()), STDIN_FILENO);
  UniqueFd log;
  if (setup.log_folder) {
    const fs::path path = *setup.log_folder / log_file_name(rank);
    log = UniqueFd(
        ::open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_NOFOLLOW | O_CLOEXEC, 0644));
    if (!log.valid()) throw_errno("open " + path.string());
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

std::vector<std::string> variables_of(const WorkerSetup& setup, int rank,
                                      const std::string& handed_over) {
  const std::string world = std::to_string(setup.world_size);
  const std::string number = std::to_string(rank);
  return {
      "RANK=" + number,
      "LOCAL_RANK=" + number,
      "WORLD_SIZE=" + world,
      "LOCAL_WORLD_SIZE=" + world,
      "MASTER_ADDR=127.0.0.1",
      "MASTER_PORT=" + std::to_string(setup.master_port),
      std::string(kHandedOverVariable) + "=" + handed_over,
  };
}

bool is_overridden(const std::string& entry, const std::vector<std::string>& overrides) {
  const std::string key = entry.substr(0, entry.find('=') + 1);
  for (const std::string& other : overrides) {
    if (other.compare(0, key.size(), key) == 0) return true;
  }
  return false;
}

}  // namespace

UniqueFd copy_above_targets(int fd) {
  UniqueFd copy(::fcntl(fd, F_DUPFD_CLOEXEC, kFirstFreeFd));
  if (!copy.valid()) throw_errno("duplicate a descriptor for a worker");
  return copy;
}

RankPlan plan_rank(const WorkerSetup& setup, int rank, int failure_fd) {
  RankPlan plan;
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
      HandOver{"snapshots", setup.snapshots_fd, kSnapshotsFd},
  };
  std::string names;
  for (const HandOver& hand_over : hand_overs) {
    if (hand_over.source < 0) continue;
    plan.descriptors.emplace_back(copy_above_targets(hand_over.source), hand_over.target);
    names += (names.empty() ? "" : " ") + std::string(hand_over.name);
  }
  plan.title = "mnist-train: rank " + std::to_string(rank);
  plan.variables = variables_of(setup, rank, names);
  return plan;
}

std::vector<std::string> environment_with(const std::vector<std::string>& variables) {
  std::vector<std::string> environment = variables;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    if (!is_overridden(*entry, variables)) environment.emplace_back(*entry);
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
  // The kernel counts it as half of the memory that there is. Raising it takes no privilege.
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

void take_place(const RankPlan& plan) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  die_before_launcher();
  if (::getppid() != plan.launcher) ::_exit(kCannotStart);  // it died before the line above
  for (const auto& [source, target] : plan.descriptors) {
    if (::dup2(source.get(), target) < 0) ::_exit(kCannotStart);
  }
  // Shells start what runs in the background with SIGINT ignored; one that is sent is meant.
  for (const int signal : {SIGINT, SIGQUIT, SIGTERM}) ::signal(signal, SIG_DFL);
  sigset_t waiting;  // stays blocked until the rank has something to save
  ::sigemptyset(&waiting);
  ::sigaddset(&waiting, SIGUSR1);
  ::sigprocmask(SIG_SETMASK, &waiting, nullptr);
}

}  // namespace mnist_train::launch
