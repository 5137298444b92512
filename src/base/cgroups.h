#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace mnist_train {

// `root` stands before the kernel's own paths; tests give a folder with copies of its files.

/// A cgroup that this process belongs to.
struct Cgroup {
  std::filesystem::path folder;
  int version = 2;
};

/// Returns the cgroups that limit this process by a controller ("memory", "pids", "cpu"): its own,
/// then those above it as far as they can be seen here.
std::vector<Cgroup> cgroups(const std::string& controller, const std::filesystem::path& root = "/");

/// Returns how many processors this process may use: its affinity mask, cut by the CPU quotas of
/// its cgroups. At least 1.
int usable_cores(const std::filesystem::path& root = "/");

/// Memory of this machine, in bytes, cut by the limits of this process's cgroups.
struct SystemMemory {
  double total = 0;
  double available = 0;  // to one more process
  bool limited = false;  // by a cgroup
};

/// Returns the memory that there is at this moment.
SystemMemory system_memory(const std::filesystem::path& root = "/");

/// Tells whether the kernel killed a process because memory had run out, from the counters of this
/// process's cgroups and of the machine.
class MemoryKills {
 public:
  explicit MemoryKills(std::filesystem::path root = "/");

  /// Returns which memory was used up ("the 512 MiB that memory.max of cgroup … allows") if the
  /// kernel has killed a process for it since the last call, or since this was made.
  std::optional<std::string> new_kill();

 private:
  struct Counts {
    double kills = 0;
    double hits = 0;  // of the limit
  };
  struct Counters {
    std::vector<Counts> of_groups;
    bool has_groups = false;  // the groups count kills
    double of_machine = 0;    // kills in all its cgroups
  };
  Counters read() const;

  std::filesystem::path root_;
  std::vector<Cgroup> groups_;
  Counters seen_;
};

/// Returns a number of bytes as limits are given: "512 MiB", "1.5 GiB".
std::string memory_text(double bytes);

}  // namespace mnist_train
