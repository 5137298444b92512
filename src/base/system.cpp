#include "base/system.h"

#include <dlfcn.h>
#include <sched.h>
#include <signal.h>
#include <spdlog/fmt/fmt.h>
#include <spdlog/spdlog.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/sysinfo.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <sstream>
#include <system_error>
#include <utility>

#include "base/error.h"
#include "base/file.h"
#include "base/print.h"

namespace mnist_train {

namespace fs = std::filesystem;

namespace {

constexpr double kKilobyte = 1024;

thread_local bool starting_thread = false;

/// Calls `start`, which starts a thread, with all signals blocked; the thread inherits this mask.
template <class Start>
auto start_without_signals(const Start& start) {
  sigset_t all;
  sigset_t before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  decltype(start()) started;
  int error = 0;
  starting_thread = true;
  try {
    started = start();
  } catch (const std::system_error& failure) {
    error = failure.code().value();
  }
  starting_thread = false;
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  if (error == 0) return started;
  throw Error(ExitCode::kRunFailed, "cannot start a thread: " + error_text(error));
}

double seconds_of(clockid_t clock) {
  timespec now{};
  ::clock_gettime(clock, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

std::string trimmed(const std::string& text) {
  const std::size_t begin = text.find_first_not_of(" \t\r\n");
  if (begin == std::string::npos) return "";
  return text.substr(begin, text.find_last_not_of(" \t\r\n") - begin + 1);
}

/// Returns the fields of /proc/PID/stat after the name: state, parent and so on.
std::string process_status(pid_t pid) {
  const std::string line = first_line("/proc/" + std::to_string(pid) + "/stat").value_or("");
  const std::size_t name_end = line.rfind(')');  // a name may contain spaces and parentheses
  return name_end == std::string::npos ? "" : trimmed(line.substr(name_end + 1));
}

bool is_owned_by_user(const fs::path& folder, mode_t forbidden_bits) {
  struct stat found {};
  return ::lstat(folder.c_str(), &found) == 0 && S_ISDIR(found.st_mode) &&
         found.st_uid == ::geteuid() && (found.st_mode & forbidden_bits) == 0;
}

std::optional<double> counter(const fs::path& file, const std::string& key) {
  return number_in(value_of(file, key));
}

/// Returns this process's path in the cgroup hierarchy of this version, or nothing if it has none.
std::optional<std::string> cgroup_path(const std::string& controller, int version,
                                       const fs::path& root) {
  std::ifstream file(root / "proc/self/cgroup");
  for (std::string line; std::getline(file, line);) {
    const std::size_t first = line.find(':');
    const std::size_t second = line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string controllers = "," + line.substr(first + 1, second - first - 1) + ",";
    const bool is_listed = controllers.find("," + controller + ",") != std::string::npos;
    if (version == 2 ? controllers == ",," : is_listed) return line.substr(second + 1);
  }
  return std::nullopt;
}

/// Returns the CPU quota of a cgroup in cores, or nothing if it has none.
std::optional<double> quota(const Cgroup& group) {
  const auto line = [&](const char* file) { return first_line(group.folder / file).value_or(""); };
  std::istringstream stream(group.version == 2
                                ? line("cpu.max")  // "max 100000": no quota
                                : line("cpu.cfs_quota_us") + ' ' + line("cpu.cfs_period_us"));
  double time_us = 0;
  double period_us = 0;
  stream >> time_us >> period_us;
  return time_us > 0 && period_us > 0 ? std::optional(time_us / period_us) : std::nullopt;
}

const char* limit_file(const Cgroup& group) {
  return group.version == 2 ? "memory.max" : "memory.limit_in_bytes";
}

/// Returns the bytes used by a cgroup, excluding reclaimable file cache.
double used_memory(const Cgroup& group) {
  const bool is_v2 = group.version == 2;
  const fs::path current = group.folder / (is_v2 ? "memory.current" : "memory.usage_in_bytes");
  double used = number_in(first_line(current)).value_or(0);
  for (const char* files : {"inactive_file", "active_file"}) {
    const std::string key = std::string(is_v2 ? "" : "total_") + files;
    used -= counter(group.folder / "memory.stat", key).value_or(0);
  }
  return std::max(used, 0.0);
}

double total_memory(const fs::path& root) {
  if (const auto total = counter(root / "proc/meminfo", "MemTotal")) return *total * kKilobyte;
  struct sysinfo info {};  // /proc may lack the file
  ::sysinfo(&info);
  return static_cast<double>(info.totalram) * info.mem_unit;
}

std::string describe_limit(__rlimit_resource resource, const char* what, const char* option) {
  rlimit limit{};
  if (::getrlimit(resource, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return "";
  const std::string text = resource == RLIMIT_NOFILE
                               ? std::to_string(limit.rlim_cur)
                               : memory_text(static_cast<double>(limit.rlim_cur));
  return fmt::format("; raise the limit on {} (ulimit {} is {})", what, option, text);
}

}  // namespace

double monotonic_seconds() { return seconds_of(CLOCK_MONOTONIC); }

double wall_clock_seconds() { return seconds_of(CLOCK_REALTIME); }

std::chrono::milliseconds to_milliseconds(double seconds) {
  return std::chrono::milliseconds(static_cast<std::int64_t>(seconds * 1000));
}

std::optional<std::string> environment_variable(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? std::nullopt : std::optional<std::string>(value);
}

std::string expand_home(const std::string& path) {
  if (path != "~" && !path.starts_with("~/")) return path;
  const auto home = environment_variable("HOME");
  if (home && !home->empty()) return *home + path.substr(1);
  refuse("{}: HOME is not set, so ~ cannot be expanded; use the full path", path);
}

std::optional<fs::path> user_cache_folder() {
  // Relative paths are ignored, as the XDG specification requires.
  const auto cache = environment_variable("XDG_CACHE_HOME");
  if (cache && cache->starts_with('/')) return fs::path(*cache) / "mnist-train";
  const auto home = environment_variable("HOME");
  if (home && home->starts_with('/')) return fs::path(*home) / ".cache" / "mnist-train";
  return std::nullopt;
}

std::optional<fs::path> private_cache_folder(const char* name) {
  const auto parent = user_cache_folder();
  if (!parent) return std::nullopt;
  std::error_code failed;
  fs::create_directories(*parent, failed);
  fs::path folder = *parent / name;
  ::mkdir(folder.c_str(), S_IRWXU);
  // The parent may be writable by the user's group, as it is by default on some systems.
  if (is_owned_by_user(*parent, S_IWOTH) && is_owned_by_user(folder, S_IWGRP | S_IWOTH))
    return folder;
  spdlog::debug("{}: not used as a cache: missing or writable by others", folder.string());
  return std::nullopt;
}

std::string host_name() {
  std::array<char, 256> name{};
  return ::gethostname(name.data(), name.size() - 1) == 0 ? name.data() : "unknown host";
}

std::thread start_thread(std::function<void()> work) {
  return start_without_signals([&] { return std::thread(std::move(work)); });
}

std::future<void> start_task(std::function<void()> work) {
  return start_without_signals([&] { return std::async(std::launch::async, std::move(work)); });
}

bool is_starting_thread() { return starting_thread; }

std::optional<std::string> first_line(const fs::path& path) {
  std::ifstream file(path);
  std::string line;
  if (!std::getline(file, line)) return std::nullopt;
  return trimmed(line);
}

std::optional<char> process_state(pid_t pid) {
  const std::string status = process_status(pid);
  return status.empty() ? std::nullopt : std::optional(status.front());
}

bool process_is_exiting(pid_t pid) {
  constexpr unsigned long kExiting = 4;  // Linux's PF_EXITING
  std::istringstream status(process_status(pid));
  std::string skipped;  // state, parent, group, session, terminal and its group
  for (int field = 0; field < 6; ++field) status >> skipped;
  unsigned long flags = 0;
  status >> flags;
  return (flags & kExiting) != 0;
}

std::optional<std::string> value_of(const fs::path& path, const std::string& key) {
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    if (!line.starts_with(key) || line.find_first_of(": \t", key.size()) != key.size()) continue;
    line.erase(0, line.find_first_not_of(": \t", key.size()));
    return trimmed(line);
  }
  return std::nullopt;
}

std::optional<double> number_in(const std::optional<std::string>& text) {
  std::istringstream stream(text.value_or(""));
  double number = 0;
  return stream >> number ? std::optional(number) : std::nullopt;
}

std::optional<double> free_space(const fs::path& folder) {
  std::error_code error;
  const auto space = fs::space(folder, error);
  return error ? std::nullopt : std::optional(static_cast<double>(space.available));
}

std::shared_ptr<std::uint8_t> reserve_memory(std::size_t bytes, const std::string& name) {
  void* memory = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) {
    throw Error(ExitCode::kData, name + ": cannot allocate " + std::to_string(bytes) +
                                     " bytes: " + error_text(errno));
  }
  // For fewer page faults; failure is harmless.
  ::madvise(memory, bytes, MADV_HUGEPAGE);
  return {static_cast<std::uint8_t*>(memory), [bytes](std::uint8_t* p) { ::munmap(p, bytes); }};
}

fs::path find_program_file(const std::string& name) {
  const fs::path folder = executable_folder();
  for (const auto& place : {folder, folder.parent_path() / "libexec" / "mnist-train"}) {
    if (path_exists(place / name)) return place / name;
  }
  return {};
}

SharedLibrary::SharedLibrary(const std::string& file, bool exports)
    : handle_(::dlopen(file.c_str(), RTLD_NOW | (exports ? RTLD_GLOBAL : RTLD_LOCAL))) {
  if (handle_ == nullptr) error_ = ::dlerror();
}

void* SharedLibrary::address_of(const char* name) const {
  return handle_ == nullptr ? nullptr : ::dlsym(handle_, name);
}

std::vector<Cgroup> cgroups(const std::string& controller, const fs::path& root) {
  const fs::path mount = root / "sys/fs/cgroup";
  std::vector<Cgroup> groups;
  for (const int version : {1, 2}) {
    const auto path = cgroup_path(controller, version, root);
    const fs::path top = version == 1 ? mount / controller : mount;
    if (!path || !is_folder(top)) continue;
    // In a container, our cgroup may be mounted at the top, but the kernel reports its host path.
    const bool is_outside = path->find("/..") != std::string::npos;  // of our cgroup namespace
    fs::path below = is_outside ? fs::path() : fs::path(*path).relative_path();
    for (; !below.empty(); below = below.parent_path()) {
      if (is_folder(top / below)) groups.push_back({top / below, version});
    }
    groups.push_back({top, version});
    break;
  }
  return groups;
}

int usable_cores(const fs::path& root) {
  cpu_set_t mask;
  CPU_ZERO(&mask);
  double cores = ::sched_getaffinity(0, sizeof mask, &mask) == 0 ? CPU_COUNT(&mask) : 1;
  for (const Cgroup& group : cgroups("cpu", root)) {
    cores = std::min(cores, quota(group).value_or(cores));
  }
  return std::max(1, static_cast<int>(cores));
}

SystemMemory system_memory(const fs::path& root) {
  const double total = total_memory(root);
  const auto free = counter(root / "proc/meminfo", "MemAvailable");
  SystemMemory memory{total, free ? *free * kKilobyte : total, false};
  for (const Cgroup& group : cgroups("memory", root)) {
    const auto limit = number_in(first_line(group.folder / limit_file(group)));
    if (!limit || *limit >= total) continue;
    memory.limited = true;
    memory.total = std::min(memory.total, *limit);
    memory.available = std::min(memory.available, std::max(0.0, *limit - used_memory(group)));
  }
  return memory;
}

OomKills::OomKills(fs::path root)
    : root_(std::move(root)), groups_(cgroups("memory", root_)), seen_(read()) {}

std::vector<OomKills::Counts> OomKills::read() const {
  std::vector<Counts> all;
  // Includes kills in other cgroups, so it is used only if no group counts its own.
  double machine_kills = counter(root_ / "proc/vmstat", "oom_kill").value_or(0);
  for (const auto& [folder, version] : groups_) {
    const bool is_v2 = version == 2;
    const auto kills =
        counter(folder / (is_v2 ? "memory.events" : "memory.oom_control"), "oom_kill");
    Counts counts{kills.value_or(0)};
    if (is_v2) {
      // memory.events includes descendants, unlike memory.events.local.
      const auto local = counter(folder / "memory.events.local", "oom");
      counts.hits = local ? *local : counter(folder / "memory.events", "oom").value_or(0);
    } else {
      for (const char* file : {"memory.failcnt", "memory.memsw.failcnt"}) {
        counts.hits += number_in(first_line(folder / file)).value_or(0);
      }
    }
    if (kills) machine_kills = 0;
    all.push_back(counts);
  }
  all.push_back({machine_kills});
  return all;
}

std::optional<std::string> OomKills::new_kill() {
  const std::vector<Counts> before = std::exchange(seen_, read());
  const auto kills = &Counts::kills;
  if (std::ranges::equal(seen_, before, std::ranges::less_equal(), kills, kills)) {
    return std::nullopt;
  }
  for (std::size_t i = 0; i < groups_.size(); ++i) {
    const Cgroup& group = groups_[i];
    const auto limit = number_in(first_line(group.folder / limit_file(group)));
    if (!limit || *limit >= total_memory(root_)) continue;
    if (seen_[i].hits <= before[i].hits) continue;
    return fmt::format("the {} that {} of cgroup {} allows", memory_text(*limit), limit_file(group),
                       group.folder.string());
  }
  return fmt::format("the {} of this machine, or the limit of a cgroup outside this container",
                     memory_text(total_memory(root_)));
}

std::string memory_text(double bytes) {
  if (bytes < 1024) return counted(static_cast<std::int64_t>(bytes), "byte");
  static constexpr std::array kUnits{"KiB", "MiB", "GiB", "TiB"};
  std::size_t unit = 0;
  for (bytes /= 1024; bytes >= 1024 && unit + 1 < kUnits.size(); ++unit) bytes /= 1024;
  return fmt::format("{:.4g} {}", bytes, kUnits[unit]);
}

std::string limit_hint(int error) {
  if (error == EAGAIN) {
    return ": a limit on processes and threads (ulimit -u, pids.max of a cgroup) or on address "
           "space (ulimit -v) has been reached; raise it, or lower launch.processes_per_node, "
           "launch.threads_per_process or data.decode_threads";
  }
  // The limit also applies to descriptors that a user's processes have sent, but not yet received.
  if (error == EMFILE || error == ETOOMANYREFS)
    return describe_limit(RLIMIT_NOFILE, "open files", "-n");
  if (error == EFBIG) return describe_limit(RLIMIT_FSIZE, "file sizes", "-f");
  if (error == ENOMEM) return describe_limit(RLIMIT_AS, "address space", "-v");
  return error == ENOSPC || error == EDQUOT ? "; free some space there" : "";
}

std::string error_text(int error) { return std::strerror(error) + limit_hint(error); }

}  // namespace mnist_train
