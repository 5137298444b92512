#pragma once

#include <cstdint>
#include <exception>
#include <filesystem>
#include <map>
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
  std::int64_t scale = 0;  // preview: of images; 0: so that a person can tell what they show
  bool as_json = false;    // results: else as text for people
  std::vector<std::string> images;  // predict: files as they were named
  std::string log_level = "info";
  bool quiet = false;
  bool progress_bar = false;  // the console is a terminal
  double started_s = 0;       // CLOCK_MONOTONIC when the command was started
  double attempt_s = 0;       // the same for this attempt, which is later after a restart
  int restarts = 0;
  bool has_table_head = false;          // of the epochs; an earlier attempt has drawn it
  std::string program = "mnist-train";  // what starts it again, for commands to copy
  std::vector<std::filesystem::path> made_folders;  // train: made for this run, from the top down
  std::map<std::string, std::string> positions;     // FILE:LINE:COLUMN of config keys, by pointer
  int refusal_code = 0;  // not 0: rank 0 refused the start, and only tells the other ranks
  std::string refusal;   // why
};

/// Returns the command that resumes a run, for a shell. It names the effective config in the run
/// folder, so `--set` and other options of the first command, or a config from standard input, need
/// not be repeated. `resume`: "auto" or a checkpoint.
std::string resume_command(const std::filesystem::path& run_folder,
                           const std::string& program = "mnist-train",
                           const std::string& resume = "auto");

/// Returns the end of a message about a failed run: its newest checkpoint that is whole, and the
/// command that resumes it, else the one that starts it once more.
std::string way_on(const std::filesystem::path& run_folder,
                   const std::string& program = "mnist-train");

/// Returns the command that classifies an image with the weights of a file, for a shell.
std::string predict_command(const std::filesystem::path& weights, const std::string& program);

/// Returns an exception's message. Before each line of a ConfigKeyError's that begins with the
/// pointer of a key that `positions` has, or of one below it, comes FILE:LINE:COLUMN.
std::string message_of(const std::exception& error,
                       const std::map<std::string, std::string>& positions);

/// Puts the job into an unnamed file in memory that a child can inherit. Throws Error(kRunFailed).
UniqueFd publish_job(const Job& job);

/// Reads what `publish_job` wrote; the descriptor stays open. Throws Error(kConfig) where there is
/// none, and Error(kRunFailed) where it is not a job.
Job read_job(int fd);

}  // namespace mnist_train::launch
