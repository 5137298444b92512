#include "report/run_folder.h"

#include <fcntl.h>
#include <sys/file.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>

#include "base/checkpoint_file.h"
#include "base/error.h"
#include "base/system.h"

namespace mnist_train::report {

namespace fs = std::filesystem;

namespace {

[[noreturn]] void refuse(const std::string& message) { throw Error(ExitCode::kConfig, message); }

bool holds_run(const fs::path& folder) {
  std::error_code error;
  for (const char* name : {files::kConfig, files::kMetrics, files::kSummary}) {
    if (fs::exists(folder / name, error)) return true;
  }
  return fs::exists(folder / files::kCheckpoints, error) &&
         !fs::is_empty(folder / files::kCheckpoints, error);
}

std::string start_time() {
  const time_t now = ::time(nullptr);
  tm local{};
  ::localtime_r(&now, &local);
  std::array<char, 32> text{};
  (void)std::strftime(text.data(), text.size(), "%Y-%m-%dT%H-%M-%S", &local);
  return text.data();
}

void make_folders(const fs::path& folder) {
  std::error_code error;
  fs::create_directories(folder / files::kLogs, error);
  if (error) refuse(folder.string() + ": cannot make the run folder: " + error.message());
  if (::access(folder.c_str(), W_OK) != 0) {
    refuse(folder.string() + ": cannot write into the run folder: " + std::strerror(errno));
  }
}

fs::path make_dated_folder(const fs::path& parent) {
  std::error_code error;
  fs::create_directories(parent, error);
  if (error) refuse(parent.string() + ": cannot make the folder for runs: " + error.message());
  const std::string name = start_time();
  for (int attempt = 1; attempt < 1000; ++attempt) {
    fs::path folder = parent / (attempt == 1 ? name : name + "-" + std::to_string(attempt));
    if (fs::create_directory(folder, error)) return folder;
    if (error) refuse(folder.string() + ": cannot make the run folder: " + error.message());
  }
  refuse(parent.string() + ": too many runs were started in this second");
}

fs::path choose_folder(const settings::RunConfig& config, const std::string& config_name,
                       const std::string& resume, bool after_restart) {
  if (config.output) return *config.output;
  const fs::path parent = fs::absolute("runs") / config_name;
  std::error_code error;
  if (!resume.empty() && resume != "auto") {
    const fs::path file = fs::absolute(resume).lexically_normal();
    if (file.parent_path().filename() == files::kCheckpoints) {
      return file.parent_path().parent_path();
    }
  }
  if (resume == "auto" || after_restart) {
    fs::path latest = fs::canonical(parent / "latest", error);
    if (!error && fs::is_directory(latest)) return latest;
  }
  return make_dated_folder(parent);
}

/// The process that took the lock last, and the launch that it belonged to, if any.
struct Holder {
  std::string process;
  std::string launch_id;
};

Holder read_lock(int fd) {
  std::string text(4096, '\0');
  const ssize_t size = ::pread(fd, text.data(), text.size(), 0);
  text.resize(static_cast<std::size_t>(std::max<ssize_t>(size, 0)));
  const std::size_t end = text.find('\n');
  return {text.substr(0, end), end == std::string::npos ? "" : text.substr(end + 1)};
}

bool belongs_to_launch(const fs::path& folder, const std::string& launch_id) {
  if (launch_id.empty()) return true;
  const UniqueFd fd(::open((folder / files::kLock).c_str(), O_RDONLY | O_NOFOLLOW | O_CLOEXEC));
  return fd.valid() && read_lock(fd.get()).launch_id == launch_id;
}

[[noreturn]] void refuse_in_use(const fs::path& folder, int lock_fd) {
  const std::string holder = read_lock(lock_fd).process;
  refuse(folder.string() + ": is in use by " + (holder.empty() ? "another process" : holder) +
         "; wait for it, or give this run another --output");
}

/// Before anything else is said about a folder: advice to resume would be wrong while it is used.
void refuse_if_in_use(const fs::path& folder) {
  const UniqueFd fd(::open((folder / files::kLock).c_str(), O_RDONLY | O_NOFOLLOW | O_CLOEXEC));
  if (fd.valid() && ::flock(fd.get(), LOCK_SH | LOCK_NB) != 0) refuse_in_use(folder, fd.get());
}

UniqueFd take_lock(const fs::path& folder, const std::string& launch_id) {
  const fs::path path = folder / files::kLock;
  UniqueFd fd(::open(path.c_str(), O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0644));
  if (!fd.valid()) refuse(path.string() + ": cannot open: " + std::strerror(errno));
  if (::flock(fd.get(), LOCK_EX | LOCK_NB) != 0) refuse_in_use(folder, fd.get());
  const std::string holder = "process " + std::to_string(::getpid()) + " on " + host_name() +
                             (launch_id.empty() ? "" : "\n" + launch_id);
  if (::ftruncate(fd.get(), 0) != 0 || !write_all(fd.get(), holder.data(), holder.size())) {
    refuse(path.string() + ": cannot write: " + std::strerror(errno));
  }
  return fd;
}

bool belongs_to(const fs::path& file, const fs::path& folder) {
  if (file.empty()) return false;
  std::error_code error;
  return fs::equivalent(fs::absolute(file).parent_path(), folder / files::kCheckpoints, error);
}

}  // namespace

RunFolder prepare_run_folder(const settings::RunConfig& config, const std::string& config_name,
                             const std::string& resume, bool after_restart,
                             const std::string& launch_id) {
  if (!resume.empty() && resume != "auto" && !fs::exists(resume)) {
    throw Error(ExitCode::kCheckpoint, resume + ": the checkpoint to resume from does not exist");
  }
  RunFolder run;
  run.path = choose_folder(config, config_name, resume, after_restart);
  refuse_if_in_use(run.path);
  const bool continues = resume == "auto" || belongs_to(resume, run.path) ||
                         (after_restart && belongs_to_launch(run.path, launch_id));
  if (holds_run(run.path) && !continues) {
    refuse(run.path.string() +
           ": holds a run already; continue it with --resume auto, or give this one another "
           "--output");
  }
  make_folders(run.path);
  run.lock = take_lock(run.path, launch_id);
  return run;
}

void point_latest_at(const fs::path& folder) {
  const fs::path link = folder.parent_path() / "latest";
  const fs::path temporary = folder.parent_path() / (".latest-" + std::to_string(::getpid()));
  std::error_code error;
  fs::remove(temporary, error);
  fs::create_directory_symlink(folder.filename(), temporary, error);
  if (!error) fs::rename(temporary, link, error);
  // A link that could not be made (a file system without links) is a comfort lost, not a run.
}

std::string way_on(const fs::path& run_folder, const std::string& resume_command) {
  std::optional<fs::path> newest;
  try {
    newest = newest_checkpoint(run_folder / files::kCheckpoints);
  } catch (const Error& error) {  // is said beside the failure, not in its place
    return "  checkpoints: " + std::string(error.what()) + "\n";
  }
  if (!newest) return "  no checkpoint was written\n";
  return "  newest checkpoint: " + newest->string() + "\n  continue with: " + resume_command + "\n";
}

}  // namespace mnist_train::report
