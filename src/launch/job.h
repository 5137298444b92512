#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "base/file.h"

namespace mnist_train::launch {

/// What a worker can be told to do.
enum class WorkerCommand { kTrain, kEvaluate, kPredict, kPreview, kDescribe, kExport, kDiagnose };

/// Returns whether one process on the CPU does all of the command's work.
constexpr bool needs_one_cpu(WorkerCommand command) {
  return command == WorkerCommand::kDescribe || command == WorkerCommand::kExport;
}

/// What the front end hands to every worker: the command, with everything validated and every path
/// absolute.
struct Job {
  WorkerCommand command = WorkerCommand::kTrain;
  std::string config;                 // the effective config as JSON
  std::filesystem::path config_path;  // the file that it came from, for messages
  std::filesystem::path run_folder;  // train: prepared by the front end; empty where rank 0 does so
  std::string resume;                // "": a new run; else "auto" or the checkpoint's path
  bool after_restart =
      false;  // this run's earlier attempt: its newest checkpoint wins over `resume`
  std::filesystem::path checkpoint;   // evaluate, predict, export
  std::string export_format;          // export: "pt", "safetensors", "onnx", "python"
  std::filesystem::path export_path;  // export, preview: the file to write
  bool with_optimizer = false;        // export
  bool as_json = false;               // describe: else as a table
  std::vector<std::string> images;    // predict: files as they were named
  std::string log_level = "info";
  bool quiet = false;
  bool progress_bar = false;  // the console is a terminal
  double started_s = 0;       // CLOCK_MONOTONIC when the command was started
  int restarts = 0;
};

/// Returns the command that resumes a run, for a shell. It names the effective config in the run
/// folder, so `--set` and other options of the first command, or a config from standard input, need
/// not be repeated.
std::string resume_command(const std::filesystem::path& run_folder);

/// Puts the job into an unnamed file in memory that a child can inherit. Throws Error(kRunFailed).
UniqueFd publish_job(const Job& job);

/// Reads what `publish_job` wrote; the descriptor stays open. Throws Error(kConfig) where there is
/// none, and Error(kRunFailed) where it is not a job.
Job read_job(int fd);

}  // namespace mnist_train::launch
