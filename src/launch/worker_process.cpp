#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <charconv>
#include <cstdlib>
#include <cstring>
#include <nlohmann/json.hpp>

#include "base/system.h"
#include "launch/supervisor.h"

namespace mnist_train::launch {

namespace fs = std::filesystem;

/// Everything that a process needs to become a rank. The launcher prepares it, because a process
/// must not allocate memory between fork and exec.
struct RankPlan {
  std::string title;                   // for `ps`
  std::vector<std::string> variables;  // "RANK=0", …, which override the launcher's
  std::vector<std::pair<UniqueFd, int>> descriptors;  // copy numbered above all targets -> target
  pid_t launcher = 0;
};

NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(RankPlan, title, variables, launcher)

namespace {

constexpr const char* kWorkerName = "mnist-train-worker";
constexpr const char* kHandedOverVariable = "MNIST_TRAIN_HANDED_OVER";
constexpr int kCannotStart = 126;  // the exit code of a process that could not become a rank

/// Copies a descriptor to a number above those of all handed-over ones. Throws Error(kRunFailed).
UniqueFd copy_above_targets(int fd) {
  constexpr int kFirstFreeFd = 64;
  UniqueFd copy(::fcntl(fd, F_DUPFD_CLOEXEC, kFirstFreeFd));
  if (!copy.valid()) throw_errno("duplicate a descriptor for a worker");
  return copy;
}

/// Returns this process's environment, overridden by `variables`.
std::vector<std::string> environment_with(const std::vector<std::string>& variables) {
  std::vector<std::string> environment = variables;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string kept = *entry;
    const std::string key = kept.substr(0, kept.find('=') + 1);
    const auto has_key = [&key](const std::string& variable) { return variable.starts_with(key); };
    if (std::ranges::none_of(variables, has_key)) environment.push_back(kept);
  }
  return environment;
}

/// Makes the kernel kill this process rather than the launcher when memory runs out, so that the
/// launcher can report the reason. Allocates no memory.
void die_before_launcher() {
  // This score counts as much as using half the machine's memory. Raising it needs no privileges.
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

/// Makes the kernel kill this process when its parent, the launcher, dies, and sets up the
/// descriptors. Exits if the process cannot become a rank. Allocates no memory.
void apply_plan(const RankPlan& plan) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  die_before_launcher();
  if (::getppid() != plan.launcher) ::_exit(kCannotStart);  // the launcher died before prctl
  for (const auto& [source, target] : plan.descriptors) {
    if (::dup2(source.get(), target) < 0) ::_exit(kCannotStart);
  }
}

/// Lets stop signals kill this process, except SIGUSR1, which waits until the rank handles signals.
void accept_signals() {
  // Shells start background processes with SIGINT ignored, but a SIGINT sent to them is deliberate.
  for (const int signal : {SIGINT, SIGQUIT, SIGTERM}) ::signal(signal, SIG_DFL);
  sigset_t waiting;
  ::sigemptyset(&waiting);
  ::sigaddset(&waiting, SIGUSR1);
  ::sigprocmask(SIG_SETMASK, &waiting, nullptr);
}

/// Plans the standard streams. Standard error goes to the rank's log file, if there is one, so that
/// the output of native code is kept too.
void plan_standard_streams(const WorkerSetup& setup, int rank, RankPlan& plan) {
  const UniqueFd null(::open("/dev/null", O_RDWR | O_CLOEXEC));
  if (!null.valid()) throw_errno("open /dev/null");
  plan.descriptors.emplace_back(copy_above_targets(null.get()), STDIN_FILENO);
  int out = rank == 0 ? setup.output_fd : STDERR_FILENO;
  UniqueFd log;
  if (setup.log_folder) {
    const fs::path path = *setup.log_folder / log_file_name(rank);
    log = UniqueFd(
        ::open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_NOFOLLOW | O_CLOEXEC, 0666));
    if (!log.valid()) throw_errno("open " + path.string());
    plan.descriptors.emplace_back(copy_above_targets(log.get()), STDERR_FILENO);
    if (rank != 0) out = log.get();
  }
  if (out >= 0) plan.descriptors.emplace_back(copy_above_targets(out), STDOUT_FILENO);
}

/// Plans a rank whose failure report goes to `failure_fd`.
RankPlan plan_rank(const WorkerSetup& setup, int rank, int failure_fd) {
  static constexpr std::array kNames{"job",     "failure",       "console", "status",
                                     "dataset", "dataset-ready", "listen",  "snapshots"};
  RankPlan plan;
  plan.launcher = ::getpid();
  plan_standard_streams(setup, rank, plan);
  std::map<HandedOverFd, int> sources = setup.descriptors;
  sources[kFailureFd] = failure_fd;
  sources[kConsoleFd] = STDERR_FILENO;
  if (rank != 0) sources.erase(kListenFd);
  std::string names;
  for (const auto& [target, source] : sources) {
    if (source < 0) continue;
    plan.descriptors.emplace_back(copy_above_targets(source), target);
    names += names.empty() ? "" : " ";
    names += kNames.at(static_cast<std::size_t>(target - kJobFd));
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

/// Starts a program, called `what` in messages, with `variables` added to its environment.
/// `prepare` runs between fork and exec, so it must not allocate memory. Throws Error(kRunFailed).
template <class Prepare>
pid_t start_program(const std::string& what, const std::string& executable, std::string title,
                    const std::vector<std::string>& variables, const Prepare& prepare) {
  std::vector<std::string> texts = environment_with(variables);
  const std::vector<char*> environment = pointers_to(texts);
  const std::array<char*, 2> arguments{title.data(), nullptr};
  std::array<int, 2> pipe{};  // closed by exec; otherwise, passes on its error
  if (::pipe2(pipe.data(), O_CLOEXEC) != 0) throw_errno("create a pipe for " + what);
  const UniqueFd read_end(pipe[0]);
  UniqueFd write_end(pipe[1]);
  write_end = copy_above_targets(pipe[1]);
  const pid_t pid = ::fork();
  if (pid < 0) throw_errno("start " + what);
  if (pid == 0) {
    prepare();
    ::execve(executable.c_str(), arguments.data(), environment.data());
    (void)write_all(write_end.get(), &errno, sizeof errno);
    ::_exit(kCannotStart);
  }
  write_end.reset();
  int error = 0;
  if (::read(read_end.get(), &error, sizeof error) != sizeof error) return pid;
  ::waitpid(pid, nullptr, 0);
  errno = error;
  throw_errno("start " + what + ": " + executable);
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

constexpr std::size_t kMaxRequestBytes = 4096;
constexpr std::size_t kMaxDescriptors = 16;
constexpr int kRequestsFd = 3;
/// /proc/PID/environ shows the memory of a process's initial environment. The server reserves space
/// there for its ranks' variables, so that tools that look for RANK find it.
constexpr const char* kSpaceVariable = "MNIST_TRAIN_SPACE";
constexpr std::size_t kSpaceBytes = 512;
/// At least as long as any rank's title, which overwrites it.
constexpr const char* kTitle = "mnist-train: fork server ";

struct Message {
  explicit Message(std::size_t size) : part{bytes.data(), size} {
    header.msg_iov = &part;
    header.msg_iovlen = 1;
    header.msg_control = control.data();
    header.msg_controllen = control.size();
  }

  std::array<char, kMaxRequestBytes> bytes{};
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int) * kMaxDescriptors)> control{};
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
  const auto request = nlohmann::json::from_cbor(message.bytes.data(), message.bytes.data() + size);
  auto plan = request.get<RankPlan>();
  const cmsghdr* control = CMSG_FIRSTHDR(&message.header);
  if (control == nullptr) return plan;
  std::size_t i = 0;
  for (const int target : request.at("targets").get<std::vector<int>>()) {
    int fd = -1;
    std::memcpy(&fd, CMSG_DATA(control) + sizeof fd * i++, sizeof fd);
    const UniqueFd received(fd);  // may have the number of a target
    plan.descriptors.emplace_back(copy_above_targets(received.get()), target);
  }
  return plan;
}

/// Overwrites the `size` bytes at `space` with as many of the strings as fit, followed by zeros.
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
  // The launcher becomes the parent when the intermediate process has exited.
  const double begin_s = monotonic_seconds();
  while (::getppid() != plan.launcher && monotonic_seconds() - begin_s < 5) ::usleep(50);
  apply_plan(plan);
  set_environment(plan.variables);
  overwrite(title, std::strlen(kTitle), {plan.title});
  const pid_t pid = ::getpid();
  if (::write(kFailureFd, &pid, sizeof pid) != sizeof pid) ::_exit(kCannotStart);
  accept_signals();  // only now can the launcher reap a rank that Ctrl-C kills
}

/// Reports to the launcher why the rank cannot be started.
void refuse_rank(const RankPlan& plan, int error) {
  const pid_t reply = -error;
  for (const auto& [fd, target] : plan.descriptors) {
    if (target == kFailureFd) (void)write_all(fd.get(), &reply, sizeof reply);
  }
}

/// Returns true in the rank and false in the server.
bool fork_rank(const RankPlan& plan, char* title) {
  const pid_t intermediate = ::fork();
  if (intermediate > 0) {
    ::waitpid(intermediate, nullptr, 0);
    return false;
  }
  if (intermediate < 0) {
    refuse_rank(plan, errno);
    return false;
  }
  const pid_t rank = ::fork();
  if (rank < 0) refuse_rank(plan, errno);
  if (rank != 0) ::_exit(0);
  become_rank(plan, title);
  return true;
}

/// Returns whether the socket is listening; sets errno if not.
bool listen_at(const sockaddr* address, socklen_t size, bool reuse, ListenSocket& result) {
  result.fd = UniqueFd(::socket(address->sa_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const int on = 1;  // an earlier run's connections may remain
  if (reuse) ::setsockopt(result.fd.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  return result.fd.valid() && ::bind(result.fd.get(), address, size) == 0 &&
         ::listen(result.fd.get(), SOMAXCONN) == 0;
}

bool is_loopback(const sockaddr* address) {
  if (address->sa_family == AF_INET) {
    const auto* four = reinterpret_cast<const sockaddr_in*>(address);
    return ntohl(four->sin_addr.s_addr) >> 24 == 127;
  }
  const auto* six = reinterpret_cast<const sockaddr_in6*>(address);
  return address->sa_family == AF_INET6 && IN6_IS_ADDR_LOOPBACK(&six->sin6_addr) != 0;
}

[[noreturn]] void refuse_port(const std::string& host, int port) {
  const std::string what = port == 0 ? "a free port" : "port " + std::to_string(port);
  throw Error(ExitCode::kDistributed,
              "cannot listen on " + what + " of " + host + ": " + std::strerror(errno));
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
              std::string("cannot find ") + kWorkerName + " next to " +
                  (executable_folder() / "mnist-train").string() +
                  " or in ../libexec/mnist-train; build or install it again (scripts/setup)");
}

void exec_worker(const Job& job, UniqueFd held) {
  const std::string executable = worker_executable().string();
  const UniqueFd published = publish_job(job);
  // A copy, because dup2 of a descriptor onto itself would leave it close-on-exec.
  const UniqueFd job_fd = copy_above_targets(published.get());
  // Numbered above the handed-over descriptors, and open across exec.
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

std::vector<char*> pointers_to(std::vector<std::string>& texts) {
  std::vector<char*> pointers;
  pointers.reserve(texts.size() + 1);
  for (std::string& text : texts) pointers.push_back(text.data());
  pointers.push_back(nullptr);
  return pointers;
}

WorkerProcess WorkerProcess::start(const WorkerSetup& setup, int rank) {
  std::array<int, 2> pipe{};
  if (::pipe2(pipe.data(), O_CLOEXEC) != 0) throw_errno("create a pipe for a worker");
  WorkerProcess worker;
  worker.rank_ = rank;
  worker.failure_pipe_ = UniqueFd(pipe[0]);
  const UniqueFd failure_write_end(pipe[1]);
  ::fcntl(pipe[0], F_SETFL, O_NONBLOCK);
  const RankPlan plan = plan_rank(setup, rank, failure_write_end.get());
  if (setup.fork_server != nullptr) {
    worker.server_ = setup.fork_server;
    worker.server_->request_rank(plan);
    worker.pid_ = kRequested;
    return worker;
  }
  worker.pid_ = start_program("rank " + std::to_string(rank), setup.executable, plan.title,
                              plan.variables, [&plan] {
                                apply_plan(plan);
                                accept_signals();
                              });
  return worker;
}

WorkerProcess::WorkerProcess(WorkerProcess&& other) noexcept
    : rank_(other.rank_),
      pid_(std::exchange(other.pid_, kNoProcess)),
      signal_(other.signal_),
      server_(other.server_),
      failure_pipe_(std::move(other.failure_pipe_)),
      exit_(std::move(other.exit_)) {}

WorkerProcess::~WorkerProcess() {
  if (!running()) return;
  send(SIGKILL);
  for (pollfd begun{failure_pipe_.get(), POLLIN, 0}; pid_ == kRequested; read_pid()) {
    ::poll(&begun, 1, /*milliseconds=*/-1);
  }
  if (pid_ > 0) ::waitpid(pid_, nullptr, 0);
}

/// Reads the process ID that a fork server's rank writes when it begins, or the errno if it cannot.
void WorkerProcess::read_pid() {
  if (pid_ != kRequested) return;
  pid_t pid = kNoProcess;
  const ssize_t size = ::read(failure_pipe_.get(), &pid, sizeof pid);
  if (size < 0) return;  // not yet
  if (size != sizeof pid || pid < 0) {
    exit_.emplace().code = kCannotStart;
    const bool is_refused = size == sizeof pid;
    if (!is_refused && signal_ != SIGUSR1) exit_->signal = signal_;  // ended the server
    const std::string why = is_refused ? "cannot fork: " + error_text(-pid) : server_->failure();
    if (!why.empty()) exit_->failure = {ExitCode::kRunFailed, why, host_name()};
    pid_ = kNoProcess;
    return;
  }
  pid_ = pid;
  if (signal_ != 0) ::kill(pid_, signal_);
}

bool WorkerProcess::is_stopped() const {
  if (!running()) return false;
  const char state = process_state(pid_ == kRequested ? server_->pid() : pid_).value_or(' ');
  return state == 'T' || state == 't';
}

void WorkerProcess::send(int signal) {
  if (pid_ == kRequested && signal_ != SIGKILL) signal_ = signal;
  read_pid();
  if (!running()) return;
  if (pid_ > 0) {
    ::kill(pid_, signal);
  } else if (signal_ != SIGUSR1) {
    server_->kill();
  }
}

void WorkerProcess::reap() {
  read_pid();
  if (!running() || pid_ == kRequested) return;
  int status = 0;
  if (::waitpid(pid_, &status, WNOHANG) != pid_) return;
  WorkerExit exit;
  if (WIFSIGNALED(status)) exit.signal = WTERMSIG(status);
  if (WIFEXITED(status)) exit.code = WEXITSTATUS(status);
  exit.failure = failure_from_text(read_available(failure_pipe_.get()));
  exit_ = std::move(exit);
}

ForkServer::ForkServer(const std::filesystem::path& executable) : executable_(executable) {
  std::array<int, 2> ends{};
  if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends.data()) != 0) {
    throw_errno("create a socket for the fork server");
  }
  requests_ = UniqueFd(ends[0]);
  const UniqueFd other(ends[1]);
  const UniqueFd served = copy_above_targets(other.get());
  if (::prctl(PR_SET_CHILD_SUBREAPER, 1) != 0) throw_errno("become the parent of the ranks");
  const pid_t launcher = ::getpid();
  pid_ = start_program("the fork server", executable, kTitle,
                       {std::string(kSpaceVariable) + "=" + std::string(kSpaceBytes, ' '),
                        std::string(kHandedOverVariable) + "=requests"},
                       [&] {
                         ::prctl(PR_SET_PDEATHSIG, SIGKILL);
                         die_before_launcher();
                         sigset_t all;  // the ranks handle Ctrl-C
                         ::sigfillset(&all);
                         ::sigprocmask(SIG_SETMASK, &all, nullptr);
                         if (::getppid() != launcher || ::dup2(served.get(), kRequestsFd) < 0)
                           ::_exit(kCannotStart);
                       });
}

ForkServer::~ForkServer() {
  kill();
  ::waitpid(pid_, nullptr, 0);
}

bool ForkServer::is_alive() const {
  siginfo_t info{};
  return ::waitid(P_PID, static_cast<id_t>(pid_), &info, WEXITED | WNOHANG | WNOWAIT) == 0 &&
         info.si_pid == 0 && !process_is_exiting(pid_) && process_state(pid_) != 'T';
}

void ForkServer::kill() const { ::kill(pid_, SIGKILL); }

std::string ForkServer::failure() const {
  siginfo_t info{};
  const int how = WEXITED | WNOWAIT | (process_is_exiting(pid_) ? 0 : WNOHANG);
  if (::waitid(P_PID, static_cast<id_t>(pid_), &info, how) != 0 || info.si_pid == 0) return "";
  if (info.si_code != CLD_EXITED && info.si_status == SIGKILL) return "";
  return executable_ +
         (info.si_code == CLD_EXITED ? " exited with status " + std::to_string(info.si_status)
                                     : " was killed by signal " + std::to_string(info.si_status) +
                                           " (" + ::strsignal(info.si_status) + ")") +
         " while starting: it or a library may be damaged or missing; build or install it again "
         "(scripts/setup)" +
         limit_hint(ENOMEM);
}

void ForkServer::request_rank(const RankPlan& plan) const {
  nlohmann::json json = plan;
  for (const auto& [source, target] : plan.descriptors) json["targets"].push_back(target);
  const auto request = nlohmann::json::to_cbor(json);
  Message message(request.size());
  std::copy(request.begin(), request.end(), message.bytes.begin());
  put_descriptors(plan, message);
  // If the server has exited, the rank's closed pipe will tell the launcher.
  if (::sendmsg(requests_.get(), &message.header, MSG_NOSIGNAL) < 0 && errno != EPIPE &&
      errno != ECONNRESET) {
    throw_errno("request a rank from the fork server");
  }
}

void serve_forks(char* title) {
  if (!was_handed_over("requests")) return;
  while (true) {
    Message message(kMaxRequestBytes);
    const ssize_t size = ::recvmsg(kRequestsFd, &message.header, MSG_CMSG_CLOEXEC);
    if (size < 0 && errno == EINTR) continue;
    if (size <= 0) ::_exit(0);
    if (fork_rank(plan_in(message, static_cast<std::size_t>(size)), title)) return;
  }
}

Host resolve(const std::string& name, int port) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  const int error = ::getaddrinfo(name.c_str(), std::to_string(port).c_str(), &hints, &found);
  if (error == 0) return {{found, &::freeaddrinfo}, ""};
  const char* why = error == EAI_SYSTEM ? std::strerror(errno) : ::gai_strerror(error);
  return {nullptr, "cannot resolve the host name: " + std::string(why)};
}

ListenSocket listen_on_loopback(bool connects) {
  ListenSocket result;
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  auto* generic = reinterpret_cast<sockaddr*>(&address);
  socklen_t size = sizeof address;
  if (!listen_at(generic, size, /*reuse=*/false, result) ||
      ::getsockname(result.fd.get(), generic, &size) != 0) {
    refuse_port("127.0.0.1", 0);
  }
  // A datagram socket sends nothing when it connects, but reports that the interface is down.
  const UniqueFd probe(::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  if (connects && ::connect(probe.get(), generic, size) != 0) {
    throw Error(ExitCode::kDistributed,
                "cannot connect to 127.0.0.1: " + std::string(std::strerror(errno)) +
                    " (is the interface lo up?)");
  }
  result.port = ntohs(address.sin_port);
  return result;
}

std::optional<ListenSocket> listen_on_host(const std::string& host, int port,
                                           bool serves_other_hosts) {
  const Host found = resolve(host, port);
  for (const addrinfo* each = found.addresses.get(); each != nullptr; each = each->ai_next) {
    if (serves_other_hosts && is_loopback(each->ai_addr)) continue;
    ListenSocket result;
    if (listen_at(each->ai_addr, each->ai_addrlen, /*reuse=*/true, result)) {
      result.port = port;
      return result;
    }
    if (errno != EADDRNOTAVAIL && errno != EAFNOSUPPORT) refuse_port(host, port);
  }
  return std::nullopt;
}

}  // namespace mnist_train::launch
