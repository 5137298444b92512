#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "base/file.h"

namespace mnist_train::launch {

/// What the front end hands to every worker: the command with everything validated and every path
/// absolute.
struct Job {
  std::string command;  // "train", "evaluate", "predict", "preview", "export", "diagnose"
  std::string config;   // the effective config as JSON, empty where a command goes without
  std::filesystem::path config_path;  // where it came from, for messages
  std::filesystem::path run_folder;   // train: prepared by the front end; empty: rank 0 knows it
  std::string resume;                 // "": a fresh run; else "auto" or the checkpoint's path
  bool after_restart = false;  // an attempt went before: its newest checkpoint goes before `resume`
  std::filesystem::path checkpoint;   // evaluate, predict, export
  std::string export_format;          // export: "pt", "safetensors"
  std::filesystem::path export_path;  // export, preview: the file to write
  bool with_optimizer = false;        // export
  std::vector<std::string> images;    // predict: files as they were named
  std::string log_level = "info";
  bool quiet = false;
  bool progress_bar = false;  // the console is a terminal
  double started_s = 0;       // CLOCK_MONOTONIC when the command was started
  int restarts = 0;
};

/// What to type to go on with a run. It names the effective config that the run folder holds, so
/// that `--set` and other options of the first command, or a config from standard input, need not
/// be given again.
std::string resume_command(const std::filesystem::path& run_folder);

/// Puts the job into an unnamed file in memory that a child can inherit. Throws Error(kRunFailed).
UniqueFd publish_job(const Job& job);

/// Reads what `publish_job` wrote; the descriptor stays open.
Job read_job(int fd);

}  // namespace mnist_train::launch
