#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace mnist_train {

// `root` is prepended to the kernel's paths; tests pass a folder with copies of its files.

/// A cgroup of this process.
struct Cgroup {
  std::filesystem::path folder;
  int version = 2;
};

/// Returns the cgroups that limit this process by a controller ("memory", "pids", "cpu"): its own,
/// then its visible ancestors.
std::vector<Cgroup> cgroups(const std::string& controller, const std::filesystem::path& root = "/");

/// Returns the number of cores that this process may use, according to its affinity mask and the
/// CPU quotas of its cgroups. At least 1.
int usable_cores(const std::filesystem::path& root = "/");

/// Memory of this machine in bytes, within the limits of this process's cgroups.
struct SystemMemory {
  double total = 0;
  double available = 0;  // to another process
  bool limited = false;  // by a cgroup
};

/// Returns the current memory.
SystemMemory system_memory(const std::filesystem::path& root = "/");

/// Detects that the kernel killed a process because memory ran out, by the counters of this
/// process's cgroups and of the machine.
class MemoryKills {
 public:
  explicit MemoryKills(std::filesystem::path root = "/");

  /// Returns the exhausted memory ("the 512 MiB that memory.max of cgroup … allows") if the kernel
  /// killed a process since the last call or construction.
  std::optional<std::string> new_kill();

 private:
  struct Counts {
    double kills = 0;
    double hits = 0;  // of the limit
  };
  struct Counters {
    std::vector<Counts> of_groups;
    bool has_groups = false;  // whether the groups count kills
    double of_machine = 0;    // kills in all cgroups
  };
  Counters read() const;

  std::filesystem::path root_;
  std::vector<Cgroup> groups_;
  Counters seen_;
};

/// Returns a number of bytes for messages: "512 MiB", "1.5 GiB".
std::string memory_text(double bytes);

/// A limit on the total number of processes and threads.
struct ProcessLimit {
  std::string name;
  double most = 0;
  double used = 0;
};

/// Returns the limits on processes and threads that apply to this process.
std::vector<ProcessLimit> process_limits(const std::filesystem::path& root = "/");

/// Returns a sentence on the limit that probably refused the last process or thread, the one
/// closest to exhaustion, with advice; nothing without limits.
std::optional<std::string> refusing_limit(const std::filesystem::path& root = "/");

/// Returns the end of a message on a failed system call: the limit on processes and threads
/// (EAGAIN), open files (EMFILE), file sizes (EFBIG) or address space (ENOMEM) that caused it, or
/// "".
std::string error_limit(int error);

/// Returns the text of strerror, and the limit that caused the error.
std::string error_text(int error);

}  // namespace mnist_train
