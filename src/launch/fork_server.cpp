#include "launch/fork_server.h"

#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/system.h"

namespace mnist_train::launch {

namespace {

constexpr std::size_t kMostRequestBytes = 4096;
constexpr std::size_t kMostDescriptors = 16;
constexpr int kRequestsFd = 3;
/// /proc/PID/environ shows the memory that a process was started with, so the server reserves space
/// there for the variables of its ranks; tools that look for RANK find it.
constexpr const char* kSpaceVariable = "MNIST_TRAIN_SPACE";
constexpr std::size_t kSpaceBytes = 512;
/// At least as long as the title of any rank, which overwrites it.
constexpr const char* kTitle = "mnist-train: fork server ";

struct Message {
  explicit Message(std::size_t size) : part{bytes.data(), size} {
    header.msg_iov = &part;
    header.msg_iovlen = 1;
    header.msg_control = control.data();
    header.msg_controllen = control.size();
  }

  std::array<char, kMostRequestBytes> bytes{};
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int) * kMostDescriptors)> control{};
  iovec part;
  msghdr header{};
};

void put_descriptors(const RankPlan& plan, Message& message) {
  const std::size_t size = sizeof(int) * plan.descriptors.size();
  message.header.msg_controllen = CMSG_SPACE(size);
  cmsghdr* control = CMSG_FIRSTHDR(&message.header);
  control->cmsg_level = SOL_SOCKET;
  control->cmsg_type = SCM_RIGHTS;
  control->cmsg_len = CMSG_LEN(size);
  for (std::size_t i = 0; i < plan.descriptors.size(); ++i) {
    const int fd = plan.descriptors[i].first.get();
    std::memcpy(CMSG_DATA(control) + i * sizeof fd, &fd, sizeof fd);
  }
}

RankPlan plan_in(const Message& message, std::size_t size) {
  RankPlan plan;
  const auto request = nlohmann::json::from_cbor(message.bytes.data(), message.bytes.data() + size);
  request.at("title").get_to(plan.title);
  request.at("variables").get_to(plan.variables);
  request.at("launcher").get_to(plan.launcher);
  const cmsghdr* control = CMSG_FIRSTHDR(&message.header);
  if (control == nullptr) return plan;
  std::size_t i = 0;
  for (const int target : request.at("targets").get<std::vector<int>>()) {
    int fd = -1;
    std::memcpy(&fd, CMSG_DATA(control) + sizeof fd * i++, sizeof fd);
    const UniqueFd received(fd);  // may have a number that is a target
    plan.descriptors.emplace_back(copy_above_targets(received.get()), target);
  }
  return plan;
}

/// Overwrites the `size` bytes at `space` by texts that fit.
void overwrite(char* space, std::size_t size, const std::vector<std::string>& texts) {
  std::memset(space, 0, size);
  for (const std::string& text : texts) {
    if (text.size() + 1 > size) return;
    std::copy(text.begin(), text.end(), space);
    space += text.size() + 1;
    size -= text.size() + 1;
  }
}

void set_environment(const std::vector<std::string>& variables) {
  char* space = std::getenv(kSpaceVariable);
  ::unsetenv(kSpaceVariable);
  for (const std::string& variable : variables) {
    const std::size_t equals = variable.find('=');
    ::setenv(variable.substr(0, equals).c_str(), variable.substr(equals + 1).c_str(), 1);
  }
  const std::size_t name_bytes = std::strlen(kSpaceVariable) + 1;
  overwrite(space - name_bytes, name_bytes + kSpaceBytes, variables);
}

void become_rank(const RankPlan& plan, char* title) {
  // The launcher becomes the parent when the process between them has ended.
  const double begin_s = monotonic_seconds();
  while (::getppid() != plan.launcher && monotonic_seconds() - begin_s < 5) ::usleep(50);
  apply_plan(plan);
  set_environment(plan.variables);
  overwrite(title, std::strlen(kTitle), {plan.title});
  const pid_t pid = ::getpid();
  if (::write(kFailureFd, &pid, sizeof pid) != sizeof pid) ::_exit(kCannotStart);
  accept_signals();  // not before: a rank that Ctrl-C ends now has a pid to be reaped by
}

/// Tells the launcher why there will be no rank.
void refuse_rank(const RankPlan& plan, int error) {
  const pid_t told = -error;
  for (const auto& [fd, target] : plan.descriptors) {
    if (target == kFailureFd) (void)write_all(fd.get(), &told, sizeof told);
  }
}

/// Returns true in the rank and false in the server.
bool fork_rank(const RankPlan& plan, char* title) {
  const pid_t between = ::fork();
  if (between > 0) {
    ::waitpid(between, nullptr, 0);
    return false;
  }
  if (between < 0) {
    refuse_rank(plan, errno);
    return false;
  }
  const pid_t rank = ::fork();
  if (rank < 0) refuse_rank(plan, errno);
  if (rank != 0) ::_exit(0);
  become_rank(plan, title);
  return true;
}

[[noreturn]] void become_server(const std::string& executable, char** arguments, char** environment,
                                int requests, pid_t launcher) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  die_before_launcher();
  sigset_t all;  // Ctrl-C is for the ranks
  ::sigfillset(&all);
  ::sigprocmask(SIG_SETMASK, &all, nullptr);
  if (::getppid() == launcher && ::dup2(requests, kRequestsFd) >= 0) {
    ::execve(executable.c_str(), arguments, environment);
  }
  ::_exit(kCannotStart);
}

}  // namespace

ForkServer ForkServer::start(const std::filesystem::path& executable) {
  std::array<int, 2> ends{};
  if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends.data()) != 0) {
    throw_errno("make a socket for the fork server");
  }
  UniqueFd requests(ends[0]);
  const UniqueFd other(ends[1]);
  const UniqueFd served = copy_above_targets(other.get());
  if (::prctl(PR_SET_CHILD_SUBREAPER, 1) != 0) throw_errno("become the parent of the ranks");
  auto variables =
      environment_with({std::string(kSpaceVariable) + "=" + std::string(kSpaceBytes, ' '),
                        std::string(kHandedOverVariable) + "=requests"});
  std::vector<char*> environment = pointers_to(variables);
  std::string title = kTitle;
  std::array<char*, 2> arguments{title.data(), nullptr};
  const pid_t launcher = ::getpid();
  const pid_t pid = ::fork();
  if (pid < 0) throw_errno("start the fork server");
  if (pid == 0) {
    become_server(executable, arguments.data(), environment.data(), served.get(), launcher);
  }
  return {pid, std::move(requests)};
}

ForkServer::ForkServer(ForkServer&& other) noexcept
    : pid_(std::exchange(other.pid_, -1)), requests_(std::move(other.requests_)) {}

ForkServer::~ForkServer() {
  if (pid_ <= 0) return;
  ::kill(pid_, SIGKILL);
  ::waitpid(pid_, nullptr, 0);
}

bool ForkServer::is_alive() const {
  siginfo_t info{};
  return ::waitid(P_PID, static_cast<id_t>(pid_), &info, WEXITED | WNOHANG | WNOWAIT) == 0 &&
         info.si_pid == 0 && !process_is_ending(pid_);
}

void ForkServer::ask_for(const RankPlan& plan) const {
  std::vector<int> targets;
  for (const auto& [source, target] : plan.descriptors) targets.push_back(target);
  const auto request = nlohmann::json::to_cbor({{"title", plan.title},
                                                {"variables", plan.variables},
                                                {"launcher", plan.launcher},
                                                {"targets", targets}});
  Message message(request.size());
  std::copy(request.begin(), request.end(), message.bytes.begin());
  put_descriptors(plan, message);
  // If the server has ended, the rank's closed pipe tells.
  if (::sendmsg(requests_.get(), &message.header, MSG_NOSIGNAL) < 0 && errno != EPIPE &&
      errno != ECONNRESET) {
    throw_errno("ask the fork server for a rank");
  }
}

void serve_forks(char* title) {
  if (!was_handed_over("requests")) return;
  while (true) {
    Message message(kMostRequestBytes);
    const ssize_t size = ::recvmsg(kRequestsFd, &message.header, MSG_CMSG_CLOEXEC);
    if (size < 0 && errno == EINTR) continue;
    if (size <= 0) ::_exit(0);
    if (fork_rank(plan_in(message, static_cast<std::size_t>(size)), title)) return;
  }
}

}  // namespace mnist_train::launch
