#pragma once

#include <sys/types.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>

namespace mnist_train {

/// Returns the seconds of CLOCK_MONOTONIC, which all processes of one machine share and which no
/// change of the date disturbs.
double monotonic_seconds();

/// Returns the seconds since 1970.
double wall_clock_seconds();

/// Converts seconds, as the config has them, for functions that wait.
std::chrono::milliseconds to_milliseconds(double seconds);

/// Returns the value of a variable of this process's environment, or nothing where it is not set.
std::optional<std::string> environment_variable(const char* name);

/// Returns a path with the user's home folder in place of a leading `~/` or a lone `~`, which a
/// shell leaves as it is behind `=` and `:` and in quotes. Throws Error(kConfig) where HOME is not
/// set.
std::string expand_home(const std::string& path);

/// Returns the folder for what this program keeps between runs and can do without:
/// $XDG_CACHE_HOME/mnist-train or ~/.cache/mnist-train. Nothing where neither is known.
std::optional<std::filesystem::path> user_cache_folder();

/// Returns the folder `name` of the user's cache, which is made where it is missing. Nothing where
/// it cannot be, or where somebody else could have written there what a run computes, or trains
/// with.
std::optional<std::filesystem::path> own_cache_folder(const char* name);

/// Returns the name of this machine, or "unknown host".
std::string host_name();

/// Starts a thread that takes no signals: they are left to the thread that waits for them. Throws
/// Error(kRunFailed) that names the limit if the system refuses it.
std::thread start_thread(std::function<void()> work);

/// Returns whether the calling thread is in `start_thread`, which handles a refusal.
bool in_start_thread();

/// Returns `bytes` rounded up to whole cache lines, so that blocks laid one behind the other do not
/// share one.
constexpr std::size_t cache_aligned(std::size_t bytes) {
  constexpr std::size_t kCacheLineBytes = 64;
  return (bytes + kCacheLineBytes - 1) / kCacheLineBytes * kCacheLineBytes;
}

/// Returns the first line of one of the kernel's files, without blanks around it, or nothing where
/// the file cannot be read.
std::optional<std::string> first_line(const std::filesystem::path& path);

/// Returns the state that the kernel shows of a process, such as 'R' for one that runs, 'T' for one
/// that is stopped and 'Z' for one that has ended; nothing where there is no such process.
std::optional<char> process_state(pid_t pid);

/// Returns whether the kernel has begun to end the process, whose descriptors may be closed while
/// its state does not tell yet.
bool process_is_ending(pid_t pid);

/// Returns the text behind "key:" in a file such as /proc/cpuinfo or /proc/meminfo, from the first
/// line with that key.
std::optional<std::string> value_of(const std::filesystem::path& path, const std::string& key);

/// Returns the number that the text begins with; nothing for "max" and other text.
std::optional<double> number_in(const std::optional<std::string>& text);

/// Returns the bytes that are free on the file system of a folder, or nothing where there is no
/// such folder.
std::optional<double> free_space(const std::filesystem::path& folder);

/// Returns zeroed memory that the system provides page by page as it is written: a reservation that
/// is never filled costs nothing. Throws Error(kData) that begins with `name`.
std::shared_ptr<std::uint8_t> reserve_memory(std::size_t bytes, const std::string& name);

}  // namespace mnist_train
