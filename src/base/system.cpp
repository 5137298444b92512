#include "base/system.h"

#include <signal.h>
#include <spdlog/spdlog.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <sstream>
#include <system_error>
#include <utility>

#include "base/error.h"

namespace mnist_train {

namespace {

thread_local bool starts_thread = false;

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
  const std::size_t name_end = line.rfind(')');  // a name may hold blanks and brackets
  return name_end == std::string::npos ? "" : trimmed(line.substr(name_end + 1));
}

bool is_own_folder(const std::filesystem::path& folder, mode_t may_not) {
  struct stat found {};
  return ::lstat(folder.c_str(), &found) == 0 && S_ISDIR(found.st_mode) &&
         found.st_uid == ::geteuid() && (found.st_mode & may_not) == 0;
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
  throw Error(ExitCode::kConfig,
              path + ": HOME is not set, so ~ stands for no folder; write the whole path");
}

std::optional<std::filesystem::path> user_cache_folder() {
  const char* cache = std::getenv("XDG_CACHE_HOME");
  // Relative paths are ignored, as specified.
  if (cache != nullptr && *cache == '/') return std::filesystem::path(cache) / "mnist-train";
  const char* home = std::getenv("HOME");
  if (home == nullptr || *home != '/') return std::nullopt;
  return std::filesystem::path(home) / ".cache" / "mnist-train";
}

std::optional<std::filesystem::path> own_cache_folder(const char* name) {
  const auto parent = user_cache_folder();
  if (!parent) return std::nullopt;
  std::error_code failed;
  std::filesystem::create_directories(*parent, failed);
  std::filesystem::path folder = *parent / name;
  ::mkdir(folder.c_str(), S_IRWXU);
  // Default permissions of some systems let the user's own group write.
  if (is_own_folder(*parent, S_IWOTH) && is_own_folder(folder, S_IWGRP | S_IWOTH)) return folder;
  spdlog::debug("{}: not used as a cache, because others could write to it", folder.string());
  return std::nullopt;
}

std::string host_name() {
  std::array<char, 256> name{};
  return ::gethostname(name.data(), name.size() - 1) == 0 ? name.data() : "unknown host";
}

std::thread start_thread(std::function<void()> work) {
  sigset_t all;
  sigset_t before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  std::thread thread;
  int refused = 0;
  starts_thread = true;
  try {
    thread = std::thread(std::move(work));
  } catch (const std::system_error& error) {
    refused = error.code().value();
  }
  starts_thread = false;
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  if (refused == 0) return thread;
  throw Error(ExitCode::kRunFailed, "cannot start a thread: " + error_text(refused));
}

bool in_start_thread() { return starts_thread; }

std::optional<std::string> first_line(const std::filesystem::path& path) {
  std::ifstream file(path);
  std::string line;
  if (!std::getline(file, line)) return std::nullopt;
  return trimmed(line);
}

std::optional<char> process_state(pid_t pid) {
  const std::string status = process_status(pid);
  if (status.empty()) return std::nullopt;
  return status.front();
}

bool process_is_ending(pid_t pid) {
  constexpr unsigned long kExiting = 4;  // PF_EXITING of Linux
  std::istringstream status(process_status(pid));
  std::string before;  // state, parent, group, session, terminal and its group
  for (int field = 0; field < 6; ++field) status >> before;
  unsigned long flags = 0;
  status >> flags;
  return (flags & kExiting) != 0;
}

std::optional<std::string> value_of(const std::filesystem::path& path, const std::string& key) {
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    const std::size_t colon = line.find(':');
    if (colon != std::string::npos && trimmed(line.substr(0, colon)) == key) {
      return trimmed(line.substr(colon + 1));
    }
  }
  return std::nullopt;
}

std::optional<double> number_in(const std::optional<std::string>& text) {
  std::istringstream stream(text.value_or(""));
  double number = 0;
  if (!(stream >> number)) return std::nullopt;
  return number;
}

std::optional<double> free_space(const std::filesystem::path& folder) {
  std::error_code error;
  const auto space = std::filesystem::space(folder, error);
  if (error) return std::nullopt;
  return static_cast<double>(space.available);
}

std::shared_ptr<std::uint8_t> reserve_memory(std::size_t bytes, const std::string& name) {
  void* memory = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) {
    throw Error(ExitCode::kData, name + ": no memory for its " + std::to_string(bytes) +
                                     " bytes: " + error_text(errno));
  }
  // For fewer page faults; failure is harmless.
  ::madvise(memory, bytes, MADV_HUGEPAGE);
  return {static_cast<std::uint8_t*>(memory), [bytes](std::uint8_t* p) { ::munmap(p, bytes); }};
}

}  // namespace mnist_train
