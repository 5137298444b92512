#pragma once

#include <cstdint>
#include <filesystem>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

namespace mnist_train::report {

/// `summary.json`: what a run was and what came out.
struct Summary {
  std::string status;  // "running", "finished", "stopped" (by a signal, resumable), "failed"
  std::string error;   // of a failed run
  std::int64_t epochs = 0;
  std::int64_t steps = 0;
  int world_size = 1;
  std::string launcher;
  std::string backend;
  std::string device;
  std::string device_model;  // of a GPU
  std::string precision;
  std::string averaging;
  std::string execution;  // "graph" or "eager"
  int threads_per_process = 1;
  double startup_seconds = 0;  // from the start of the command to the first step
  double train_seconds = 0;
  double test_seconds = 0;
  double wall_seconds = 0;  // of this command
  double samples_per_second = 0;
  std::optional<double> test_loss;
  std::optional<double> test_accuracy;
  std::optional<double> best_test_accuracy;
  std::optional<double> validation_accuracy;  // where samples are held out
  std::optional<double> best_validation_accuracy;
  std::int64_t samples_seen = 0;
  std::int64_t restarts = 0;
  std::int64_t peak_memory_bytes = 0;  // of the largest process
  double checkpoint_seconds = 0;       // of this command, as is the next
  double report_seconds = 0;
  std::string config_hash;
  std::string data_hash;
};

/// What of it is known when a run starts, as JSON: processes, device, precision, versions, hashes.
nlohmann::ordered_json identity_of(const Summary& summary);

/// Whole or not at all. Throws Error(kRunFailed).
void write_summary(const std::filesystem::path& path, const Summary& summary);

/// Turns a summary that says "running" into one that says "failed" and why. Any other is left as it
/// is, and so is one that cannot be written: the failure itself matters more.
void note_failure(const std::filesystem::path& path, const std::string& error);

/// The same for a run that was stopped before it could say so itself.
void note_stop(const std::filesystem::path& path);

/// Whether the summary there says "finished".
bool says_finished(const std::filesystem::path& path);

/// A JSON list of test accuracies in [0,1], one an epoch; whole or not at all. Throws
/// Error(kRunFailed).
void write_accuracies(const std::filesystem::path& path, const std::vector<double>& accuracies);

/// How many such a list holds; 0 where there is none.
std::size_t count_accuracies(const std::filesystem::path& path);

/// Peak resident memory of this process.
std::int64_t peak_memory_bytes();

}  // namespace mnist_train::report
