#include "launch/job.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstring>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string_view>
#include <vector>

#include "base/checkpoint_file.h"
#include "base/error.h"
#include "base/print.h"
#include "base/system.h"
#include "settings/run_config.h"

namespace mnist_train::launch {

namespace fs = std::filesystem;

NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(Job, command, config, config_path, run_folder, resume,
                                   after_restart, checkpoint, dataset_record, export_format,
                                   export_input, export_path, with_optimizer, scale, as_json,
                                   images, predicts_test, log_level, quiet, progress_bar, started_s,
                                   attempt_s, restarts, has_table_head, program, made_folders,
                                   positions, refusal_code, refusal)

namespace {

/// Returns the command that runs the run's config again, into a new folder.
std::string run_command(const fs::path& run_folder, const std::string& program) {
  return shell_word(program) + " --config " +
         shell_word((run_folder / settings::run_files::kConfig).string());
}

}  // namespace

std::string predict_command(const fs::path& weights, const std::string& program) {
  return shell_word(program) + " predict --checkpoint " +
         shell_word(path_to_type(weights).string()) + " IMAGE.png";
}

std::string message_of(const std::exception& error,
                       const std::map<std::string, std::string>& positions) {
  if (dynamic_cast<const ConfigKeyError*>(&error) == nullptr) return error.what();
  std::istringstream lines(error.what());
  std::string text;
  for (std::string line; std::getline(lines, line);) {
    const std::size_t end = line.starts_with('/') ? line.find(": ") : std::string::npos;
    std::string pointer = end == std::string::npos ? "" : line.substr(0, end);
    while (!pointer.empty() && !positions.contains(pointer)) {
      pointer.resize(pointer.rfind('/'));
    }
    text +=
        (text.empty() ? "" : "\n") + (pointer.empty() ? "" : positions.at(pointer) + ": ") + line;
  }
  return text;
}

std::string resume_command(const fs::path& run_folder, const std::string& program,
                           const std::string& resume) {
  return run_command(run_folder, program) + " --output " + shell_word(run_folder.string()) +
         " --resume " + shell_word(resume);
}

std::string recovery_advice(const fs::path& run_folder, const std::string& program) try {
  const fs::path folder = run_folder / settings::run_files::kCheckpoints;
  if (const auto newest = newest_whole_checkpoint(folder)) {
    const bool is_best = newest->filename() == kBestCheckpoint;
    return "  newest checkpoint: " + newest->string() + "\n  continue with: " +
           resume_command(run_folder, program, is_best ? newest->string() : "auto") + "\n";
  }
  if (saved_steps(folder).empty()) return "  no checkpoint was written\n";
  return "  none of its checkpoints can be read\n  start again with: " +
         run_command(run_folder, program) + "\n";
} catch (const Error& error) {  // shown with the failure, not instead of it
  return "  checkpoints: " + std::string(error.what()) + "\n";
}

UniqueFd publish_job(const Job& job) {
  UniqueFd fd(::memfd_create("mnist-train-job", MFD_CLOEXEC));
  // CBOR, because paths need not be UTF-8.
  const std::vector<std::uint8_t> bytes = nlohmann::json::to_cbor(job);
  if (!fd.valid() || !write_all(fd.get(), bytes.data(), bytes.size())) {
    throw_errno("hand the job to the workers");
  }
  return fd;
}

Job read_job(int fd) {
  if (::fcntl(fd, F_GETFD) < 0) {
    throw Error(
        ExitCode::kConfig,
        "mnist-train-worker is started by mnist-train, not by hand: no job was handed over");
  }
  const auto json =
      nlohmann::json::from_cbor(content_of(fd), /*strict=*/true, /*allow_exceptions=*/false);
  if (json.is_object()) return json.get<Job>();
  throw Error(ExitCode::kRunFailed, "cannot read the job that the launcher handed over");
}

}  // namespace mnist_train::launch
