#include <fcntl.h>
#include <spdlog/fmt/chrono.h>
#include <spdlog/spdlog.h>
#include <time.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <regex>

#include "base/print.h"
#include "base/system.h"
#include "report/records.h"

namespace mnist_train::report {

namespace {

fs::path make_dated_folder(const fs::path& parent, std::vector<fs::path>& created) {
  make_folder(parent, ExitCode::kConfig, &created);
  const time_t now = ::time(nullptr);
  tm local{};
  ::localtime_r(&now, &local);
  const std::string name = fmt::format("{:%Y-%m-%dT%H-%M-%S}", local);
  return first_numbered(parent / name, [&](const fs::path& folder) {
    const std::size_t before = created.size();
    make_folder(folder, ExitCode::kConfig, &created);
    return created.size() > before;
  });
}

[[noreturn]] void refuse_in_use(const fs::path& folder, int lock_fd) {
  std::string holder = content_of(lock_fd);
  holder = holder.substr(0, holder.find('\n'));  // "process 123 on host"
  const bool is_here = holder.ends_with(" on " + host_name());
  // The lock file may still contain the name of the previous holder.
  const auto pid = is_here ? std::strtol(holder.c_str() + holder.find(' '), nullptr, 10) : 0;
  const bool has_ended = is_here && !process_state(static_cast<pid_t>(pid));
  if (holder.empty() || has_ended) holder = "another process";
  refuse("{}: is in use by {}; wait for it, or choose another --output", folder.string(), holder);
}

/// Locks the folder, and records this process and its launch, if any, in the lock file.
UniqueFd take_lock(const fs::path& folder, const std::string& launch_id) {
  const fs::path path = folder / files::kLock;
  UniqueFd fd(::open(path.c_str(), O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0666));
  if (!fd.valid()) refuse("{}: cannot open: {}", path.string(), std::strerror(errno));
  const FileLock lock = take_file_lock(fd.get());
  if (lock == FileLock::kHeld) refuse_in_use(folder, fd.get());
  if (lock == FileLock::kUnsupported) {
    spdlog::warn("{}: cannot be locked on this file system ({}); do not start a second run there",
                 folder.string(), std::strerror(errno));
  }
  const std::string holder = "process " + std::to_string(::getpid()) + " on " + host_name() +
                             (launch_id.empty() ? "" : "\n" + launch_id);
  if (::ftruncate(fd.get(), 0) != 0 || !write_all(fd.get(), holder.data(), holder.size())) {
    const int reason = errno;
    ::unlink(path.c_str());
    refuse("{}: cannot write: {}", path.string(), std::strerror(reason));
  }
  return fd;
}

bool belongs_to(const fs::path& file, const fs::path& folder) {
  if (file.empty()) return false;
  std::error_code error;
  return fs::equivalent(fs::absolute(file).parent_path(), folder / files::kCheckpoints, error);
}

/// Returns the specified folder or the folder of the run to resume; nothing if a new one is needed.
/// Throws if the folder is occupied or in use.
std::optional<fs::path> find_free_folder(const settings::RunConfig& config,
                                         const std::string& config_name, const std::string& resume,
                                         bool after_restart, const std::string& launch_id) {
  const bool names_checkpoint = !resume.empty() && resume != "auto";
  if (names_checkpoint && !fs::exists(resume)) {
    throw Error(ExitCode::kCheckpoint, resume + ": the checkpoint to resume from does not exist");
  }
  std::optional<fs::path> folder = config.output;
  if (!folder && names_checkpoint) {
    const fs::path parent = fs::absolute(resume).lexically_normal().parent_path();
    if (parent.filename() == files::kCheckpoints) folder = parent.parent_path();
  }
  if (!folder && (resume == "auto" || after_restart)) {
    std::error_code error;
    const fs::path latest = fs::canonical(fs::absolute("runs") / config_name / "latest", error);
    if (!error && fs::is_directory(latest)) folder = latest;
  }
  if (!folder) return std::nullopt;
  if (folder->lexically_normal() == folder->root_path()) {
    refuse("{}: is the root of the file system; choose a folder for the run", folder->string());
  }
  // Checked first, because advice to resume would be wrong while the folder is in use.
  const UniqueFd lock(::open((*folder / files::kLock).c_str(), O_RDONLY | O_NOFOLLOW | O_CLOEXEC));
  if (lock.valid() && is_file_locked(lock.get())) refuse_in_use(*folder, lock.get());
  const auto same_launch = [&] {
    return launch_id.empty() ||
           (lock.valid() && content_of(lock.get()).ends_with("\n" + launch_id));
  };
  const bool continues =
      resume == "auto" || belongs_to(resume, *folder) || (after_restart && same_launch());
  if (continues) return folder;
  if (holds_run(*folder)) {
    refuse("{}: already contains a run; resume it with --resume auto, or choose another --output",
           folder->string());
  }
  std::error_code error;
  for (const fs::path& name : {fs::path(config.model_file), fs::path(config.accuracies_file),
                               fs::path(files::kDataset), fs::path(files::kPage)}) {
    if (!fs::is_regular_file(*folder / name, error)) continue;
    refuse("{}: already contains {}, which the run would replace; choose another --output",
           folder->string(), name.string());
  }
  return folder;
}

/// Returns whether a run writes and still needs `file`, a path relative to the run folder.
bool is_run_file(const fs::path& folder, const fs::path& file) {
  const std::string first = *file.begin();
  if (first == files::kCheckpoints || first == files::kLogs) return true;
  for (const char* name : {files::kConfig, files::kMetrics, files::kSummary, files::kPredictions,
                           files::kMistakes, files::kLineage, files::kDataset, files::kLock}) {
    if (file == name) return true;
  }
  const settings::RunConfig config = config_of(folder);
  return first.starts_with(files::kEvents) || file == config.model_file ||
         file == config.accuracies_file;
}

}  // namespace

bool holds_run(const fs::path& folder) {
  std::error_code error;
  for (const char* name : {files::kConfig, files::kMetrics, files::kSummary}) {
    if (fs::exists(folder / name, error)) return true;
  }
  return fs::exists(folder / files::kCheckpoints, error) &&
         !fs::is_empty(folder / files::kCheckpoints, error);
}

settings::RunConfig config_of(const fs::path& folder) try {
  constexpr std::size_t kMaxBytes = 1 << 20;
  const fs::path path = folder / files::kConfig;
  return settings::parse_run_config(
      {path.string(), read_file(path, kMaxBytes, ExitCode::kConfig), folder});
} catch (const Error&) {
  return {};
}

std::optional<fs::path> run_that_wrote(const fs::path& file) {
  std::error_code error;
  const fs::path absolute = fs::absolute(file);
  const fs::path parent = fs::canonical(absolute.parent_path(), error);
  if (error || !fs::exists(fs::symlink_status(absolute, error))) return std::nullopt;
  const fs::path path = parent / absolute.filename();
  for (fs::path folder = parent;; folder = folder.parent_path()) {
    const bool has_run =
        fs::exists(folder / files::kMetrics, error) || fs::exists(folder / files::kSummary, error);
    if (has_run && is_run_file(folder, path.lexically_relative(folder))) return folder;
    if (folder == folder.parent_path()) return std::nullopt;
  }
}

void remove_records(const fs::path& folder) {
  std::error_code ignored;
  for (const char* name :
       {files::kConfig, files::kMetrics, files::kSummary, files::kLineage, files::kDataset}) {
    fs::remove(folder / name, ignored);
  }
}

void discard_run_folder(const fs::path& folder, const std::vector<fs::path>& created) {
  if (folder.empty() || holds_run(folder)) return;
  std::error_code ignored;
  fs::remove(folder / files::kLock, ignored);
  const fs::path logs = folder / files::kLogs;
  if (std::find(created.begin(), created.end(), logs) != created.end()) {
    fs::remove_all(logs, ignored);
  }
  remove_created(created);
}

void check_run_folder(const settings::RunConfig& config, const std::string& config_name,
                      const std::string& resume) {
  (void)find_free_folder(config, config_name, resume, /*after_restart=*/false, "");
}

RunFolder prepare_run_folder(const settings::RunConfig& config, const std::string& config_name,
                             const std::string& resume, bool after_restart,
                             const std::string& launch_id) {
  const auto folder = find_free_folder(config, config_name, resume, after_restart, launch_id);
  RunFolder run;
  try {
    run.path =
        folder ? *folder : make_dated_folder(fs::absolute("runs") / config_name, run.created);
    make_folder(run.path, ExitCode::kConfig, &run.created);
    make_folder(run.path / files::kLogs, ExitCode::kConfig, &run.created);
    const std::string name = run.path.string();
    if (::access(name.c_str(), W_OK) != 0) {
      refuse("{}: cannot write to the run folder: {}", name, std::strerror(errno));
    }
    run.lock = take_lock(run.path, launch_id);
  } catch (const Error&) {
    remove_created(run.created);
    throw;
  }
  return run;
}

void update_latest_link(const fs::path& folder) {
  const std::regex dated(R"(\d{4}-\d\d-\d\dT\d\d-\d\d-\d\d(-\d+)?)");  // see make_dated_folder
  if (!std::regex_match(folder.filename().string(), dated)) return;
  const fs::path link = folder.parent_path() / "latest";
  const fs::path temporary = folder.parent_path() / (".latest-" + std::to_string(::getpid()));
  std::error_code error;
  fs::remove(temporary, error);
  fs::create_directory_symlink(folder.filename(), temporary, error);
  if (!error) fs::rename(temporary, link, error);
  // Errors are ignored: not all file systems support links, and the run does not need this one.
}

}  // namespace mnist_train::report
