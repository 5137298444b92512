#pragma once

#include <cstdint>
#include <exception>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "base/file.h"

namespace mnist_train::launch {

/// The commands: those of workers, then those that the front end runs itself.
enum class Command {
  kTrain,
  kEvaluate,
  kPredict,
  kPreview,
  kDescribe,
  kExport,
  kInit,
  kDiagnose,  // for the doctor
  kDoctor,
  kFetch,
  kConvert,
  kReport,
  kConfigSchema,
  kCompletion,
  kManPage,
  kShowText
};

/// Returns whether a single process on the CPU runs the command.
constexpr bool needs_one_cpu(Command command) {
  return command == Command::kDescribe || command == Command::kExport || command == Command::kInit;
}

/// What the front end hands to every worker: a validated command with absolute paths.
struct Job {
  Command command = Command::kTrain;
  std::string config;                 // the effective config as JSON
  std::filesystem::path config_path;  // its file, for messages
  std::filesystem::path run_folder;   // train: prepared by the front end; empty if rank 0 does that
  std::string resume;                 // "": a new run; else "auto" or the checkpoint's path
  bool after_restart = false;         // the newest checkpoint of this run overrides `resume`
  std::filesystem::path checkpoint;   // evaluate, predict, export; init: weights
  std::filesystem::path dataset_record;  // the dataset.json of its run; empty: none
  std::string export_format;             // export: "pt", "safetensors", "onnx", "python"
  std::string export_input;              // export, onnx: "float32", "bytes"
  std::filesystem::path export_path;     // export, preview: the file to write
  bool with_optimizer = false;           // export
  std::int64_t scale = 0;                // preview: of images; 0: large enough for people
  bool as_json = false;                  // results: else as text for people
  std::vector<std::string> images;       // predict: files as they were named; init: the folder
  bool predicts_test = false;            // predict: the test set instead of files
  std::string log_level = "info";
  bool quiet = false;
  bool progress_bar = false;  // the console is a terminal
  double started_s = 0;       // CLOCK_MONOTONIC when the command was started
  double attempt_s = 0;       // the same for this attempt
  int restarts = 0;
  bool has_table_head = false;          // an earlier attempt has drawn the table of epochs
  std::string program = "mnist-train";  // for commands to copy
  std::vector<std::filesystem::path> made_folders;  // train: made for this run, from the top down
  std::map<std::string, std::string> positions;     // FILE:LINE:COLUMN of config keys, by pointer
  int refusal_code = 0;  // not 0: rank 0 refused the start, and only tells the other ranks
  std::string refusal;   // the reason
};

/// Returns the shell command that resumes a run. It names the effective config in the run folder,
/// so
/// `--set` and other options of the first command, or a config from standard input, need not be
/// repeated. `resume`: "auto" or a checkpoint.
std::string resume_command(const std::filesystem::path& run_folder,
                           const std::string& program = "mnist-train",
                           const std::string& resume = "auto");

/// Returns the end of a message about a failed run: its newest intact checkpoint and the command
/// that resumes it, else the command that starts it again.
std::string recovery_advice(const std::filesystem::path& run_folder,
                            const std::string& program = "mnist-train");

/// Returns the shell command that classifies an image with the weights of a file.
std::string predict_command(const std::filesystem::path& weights, const std::string& program);

/// Returns an exception's message. Lines of a ConfigKeyError that begin with a key's pointer get
/// the FILE:LINE:COLUMN of the key, or of one above it, in front.
std::string message_of(const std::exception& error,
                       const std::map<std::string, std::string>& positions);

/// Writes the job to a memory file that a child can inherit. Throws Error(kRunFailed).
UniqueFd publish_job(const Job& job);

/// Reads the job that `publish_job` wrote; the descriptor stays open. Throws Error(kConfig) if
/// there is no such descriptor, and Error(kRunFailed) if it holds no job.
Job read_job(int fd);

}  // namespace mnist_train::launch
