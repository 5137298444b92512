#pragma once

#include <sys/types.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <future>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

namespace mnist_train {

/// Returns CLOCK_MONOTONIC in seconds, which is the same for all processes on a machine.
double monotonic_seconds();

/// Does the work and returns how long it took, in seconds.
template <class Work>
double duration_s(const Work& work) {
  const double begin_s = monotonic_seconds();
  work();
  return monotonic_seconds() - begin_s;
}

/// Returns the time since 1970 in seconds.
double wall_clock_seconds();

/// Converts seconds, the config's unit, to the type that functions with a timeout expect.
std::chrono::milliseconds to_milliseconds(double seconds);

/// Returns the value of an environment variable, or nothing if it is not set.
std::optional<std::string> environment_variable(const char* name);

/// Replaces a leading `~/` or a lone `~` with the home folder, because shells do not do so in
/// quotes or after `=` or `:`. Throws Error(kConfig) if HOME is not set.
std::string expand_home(const std::string& path);

/// Returns the cache folder, $XDG_CACHE_HOME/mnist-train or $HOME/.cache/mnist-train, or nothing if
/// neither variable is an absolute path.
std::optional<std::filesystem::path> user_cache_folder();

/// Returns the folder `name` in the cache folder, creating it if necessary. Returns nothing if that
/// fails, or if other users could have written there, because runs trust its content.
std::optional<std::filesystem::path> private_cache_folder(const char* name);

/// Returns the name of this machine, or "unknown host".
std::string host_name();

/// Starts a thread that blocks all signals. On failure, throws Error(kRunFailed) naming the limits.
std::thread start_thread(std::function<void()> work);
/// Like `start_thread`. The future holds any exception thrown by `work`; its destructor waits.
std::future<void> start_task(std::function<void()> work);

/// Returns whether the calling thread is in `start_thread` or `start_task`, which throw on failure.
bool is_starting_thread();

/// Returns `bytes` rounded up to whole cache lines, so that consecutive blocks do not share one.
constexpr std::size_t cache_aligned(std::size_t bytes) {
  constexpr std::size_t kCacheLineBytes = 64;
  return (bytes + kCacheLineBytes - 1) / kCacheLineBytes * kCacheLineBytes;
}

/// Returns the first line of a file, trimmed; nothing if it is empty or cannot be read.
std::optional<std::string> first_line(const std::filesystem::path& path);

/// Returns the kernel's state of a process: 'R' running, 'T' stopped, 'Z' zombie and so on; nothing
/// if there is no such process.
std::optional<char> process_state(pid_t pid);

/// Returns whether the process is exiting, even if `process_state` does not show it yet. Its
/// descriptors may already be closed.
bool process_is_exiting(pid_t pid);

/// Returns the text of the first line "key: text" or "key text" in a file such as /proc/cpuinfo.
std::optional<std::string> value_of(const std::filesystem::path& path, const std::string& key);

/// Returns the number at the beginning of the text; nothing for "max" and other text.
std::optional<double> number_in(const std::optional<std::string>& text);

/// Returns the free bytes on a folder's file system, or nothing if the folder does not exist.
std::optional<double> free_space(const std::filesystem::path& folder);

/// Returns zeroed memory whose pages are allocated on first write. Throws Error(kData) with a
/// message that begins with `name`.
std::shared_ptr<std::uint8_t> reserve_memory(std::size_t bytes, const std::string& name);

/// Returns the path of one of our programs or modules: next to the running executable, or in
/// ../libexec/mnist-train, the folder for internal programs. Empty if it is in neither.
std::filesystem::path find_program_file(const std::string& name);

/// A shared library loaded at run time. It is never unloaded, because it may have started threads.
///
///     const SharedLibrary driver("libcuda.so.1");
///     if (const auto init = driver.find<int(unsigned)>("cuInit")) init(0);
class SharedLibrary {
 public:
  /// Loads a library by its path, or by a name that the loader looks up. With `exports`, its
  /// symbols are also visible to libraries loaded later. Does not throw: see `loaded`.
  explicit SharedLibrary(const std::string& file, bool exports = false);

  bool loaded() const { return handle_ != nullptr; }

  const std::string& error() const { return error_; }  // the loader's message

  /// Returns the C function of that name, or null.
  template <class Function>
  Function* find(const char* name) const {
    return reinterpret_cast<Function*>(address_of(name));
  }

 private:
  void* address_of(const char* name) const;

  void* handle_;
  std::string error_;
};

// Resource limits of this process. `root` is prepended to the kernel's paths; tests pass a folder
// with copies of the kernel's files.

/// A cgroup of this process.
struct Cgroup {
  std::filesystem::path folder;
  int version = 2;
};

/// Returns the cgroups in /sys/fs/cgroup through which a controller ("memory", "cpu") may limit
/// this process: its own, then its visible ancestors.
std::vector<Cgroup> cgroups(const std::string& controller, const std::filesystem::path& root = "/");

/// Returns the number of cores that this process may use, according to its affinity mask and the
/// CPU quotas of its cgroups. At least 1.
int usable_cores(const std::filesystem::path& root = "/");

/// Memory of this machine in bytes, within the limits of this process's cgroups.
struct SystemMemory {
  double total = 0;
  double available = 0;  // for new allocations; `total` if unknown
  bool limited = false;  // by a cgroup
};

SystemMemory system_memory(const std::filesystem::path& root = "/");

/// Detects out-of-memory kills, using the counters of this process's cgroups and of the machine.
class OomKills {
 public:
  explicit OomKills(std::filesystem::path root = "/");

  /// If the kernel killed a process since construction or the last call, returns which memory was
  /// exhausted: "the 512 MiB that memory.max of cgroup … allows".
  std::optional<std::string> new_kill();

 private:
  struct Counts {
    double kills = 0;
    double hits = 0;  // times the limit was reached
  };
  std::vector<Counts> read() const;

  std::filesystem::path root_;
  std::vector<Cgroup> groups_;
  std::vector<Counts> seen_;  // of the groups, then of the machine
};

/// Formats a number of bytes for messages: "512 MiB", "1.5 GiB".
std::string memory_text(double bytes);

/// Returns the end of a message about a failed system call: limits that may cause it (on processes
/// and threads for EAGAIN, open files, file sizes, address or disk space) with advice, or "".
std::string limit_hint(int error);

/// Returns the text of strerror followed by that of `limit_hint`.
std::string error_text(int error);

}  // namespace mnist_train
