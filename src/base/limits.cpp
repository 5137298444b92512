#include "base/limits.h"

#include <spdlog/fmt/fmt.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <sstream>

#include "base/cgroups.h"
#include "base/system.h"

namespace mnist_train {

namespace fs = std::filesystem;

namespace {

std::optional<rlim_t> soft_limit(__rlimit_resource resource) {
  rlimit limit{};
  if (::getrlimit(resource, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return std::nullopt;
  return limit.rlim_cur;
}

/// Returns whether ulimit -u applies to this process: the kernel exempts root, but not root of a
/// user namespace.
bool is_bound_by_ulimit() {
  std::istringstream map(first_line("/proc/self/uid_map").value_or(""));
  std::string inside, outside;
  map >> inside >> outside;
  return ::getuid() != 0 || outside != "0";
}

/// Returns the number of visible processes and threads of this user.
double own_threads() {
  double threads = 0;
  std::error_code error;
  for (fs::directory_iterator entry("/proc", error), end; !error && entry != end;
       entry.increment(error)) {
    const fs::path status = entry->path() / "status";
    const auto user = number_in(value_of(status, "Uid"));
    if (user != static_cast<double>(::getuid())) continue;
    threads += number_in(value_of(status, "Threads")).value_or(0);
  }
  return threads;
}

double threads_of_machine(const fs::path& root) {
  const std::string load = first_line(root / "proc/loadavg").value_or("");  // "0.5 0.4 0.3 2/345 6"
  const std::size_t slash = load.find('/');
  return slash == std::string::npos ? 0 : number_in(load.substr(slash + 1)).value_or(0);
}

std::string process_limit_text(const ProcessLimit& limit) {
  return fmt::format(
      "{} allows {:.0f} processes and threads, and {:.0f} are in use; raise it, or lower "
      "launch.processes_per_node, launch.threads_per_process or data.decode_threads",
      limit.name, limit.most, limit.used);
}

/// A thread needs address space for its stack, and fails with the same error without it.
std::optional<std::string> reached_address_space() {
  const auto most = soft_limit(RLIMIT_AS);
  if (!most) return std::nullopt;
  constexpr double kKilobyte = 1024;
  const double used = number_in(value_of("/proc/self/status", "VmSize")).value_or(0) * kKilobyte;
  const auto stack = static_cast<double>(soft_limit(RLIMIT_STACK).value_or(rlim_t{8} << 20U));
  if (used + stack < static_cast<double>(*most)) return std::nullopt;
  return fmt::format("ulimit -v allows {} of address space, and {} are in use; raise it",
                     memory_text(static_cast<double>(*most)), memory_text(used));
}

std::string describe_limit(__rlimit_resource resource, const char* what, const char* option) {
  const auto limit = soft_limit(resource);
  if (!limit) return "";
  const auto most = static_cast<double>(*limit);
  const bool counts = resource == RLIMIT_NOFILE;
  return fmt::format("; raise the limit on {} (ulimit {} is {})", what, option,
                     counts ? fmt::format("{:.0f}", most) : memory_text(most));
}

}  // namespace

std::vector<ProcessLimit> process_limits(const fs::path& root) {
  std::vector<ProcessLimit> limits;
  for (const Cgroup& group : cgroups("pids", root)) {
    const auto most = number_in(first_line(group.folder / "pids.max"));
    if (!most) continue;
    limits.push_back({"pids.max of cgroup " + group.folder.string(), *most,
                      number_in(first_line(group.folder / "pids.current")).value_or(0)});
  }
  for (const char* name : {"threads-max", "pid_max"}) {
    const auto most = number_in(first_line(root / "proc/sys/kernel" / name));
    if (most) limits.push_back({std::string("kernel.") + name, *most, threads_of_machine(root)});
  }
  if (const auto most = soft_limit(RLIMIT_NPROC); most && is_bound_by_ulimit()) {
    limits.push_back({"ulimit -u", static_cast<double>(*most), own_threads()});
  }
  return limits;
}

std::optional<std::string> refusing_limit(const fs::path& root) {
  constexpr double kReached = 0.9;  // some may have ended since
  const auto share = [](const ProcessLimit& limit) { return limit.used / limit.most; };
  const auto limits = process_limits(root);
  const auto nearest = std::max_element(limits.begin(), limits.end(),
                                        [&](const ProcessLimit& one, const ProcessLimit& other) {
                                          return share(one) < share(other);
                                        });
  const bool is_known = nearest != limits.end();
  if (!is_known || share(*nearest) < kReached) {
    if (auto space = reached_address_space()) return space;
  }
  // Outside of this container, more processes and threads may count.
  return is_known ? std::optional(process_limit_text(*nearest)) : std::nullopt;
}

std::string error_limit(int error) {
  switch (error) {
    case EAGAIN: {
      const auto limit = refusing_limit();
      return limit ? ": " + *limit : "";
    }
    case EMFILE:
      return describe_limit(RLIMIT_NOFILE, "open files", "-n");
    case EFBIG:
      return describe_limit(RLIMIT_FSIZE, "file sizes", "-f");
    case ENOMEM:
      return describe_limit(RLIMIT_AS, "address space", "-v");
    case ENOSPC:
    case EDQUOT:
      return "; free some space there";
    default:
      return "";
  }
}

std::string error_text(int error) { return std::strerror(error) + error_limit(error); }

}  // namespace mnist_train
