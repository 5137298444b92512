#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace mnist_train::report {

/// One start of a run: the first, a restart after a lost process, or a resume.
struct RunStart {
  std::string host;
  std::string resumed_from;  // the checkpoint; empty: a fresh start
  std::int64_t epoch = 0;    // finished epochs
  std::int64_t step = 0;
  std::int64_t samples_seen = 0;
  std::int64_t train_images = 0;
  std::int64_t validation_images = 0;
  std::int64_t test_images = 0;
  std::int64_t image_channels = 0;
  std::int64_t image_height = 0;
  std::int64_t image_width = 0;
  std::int64_t classes = 0;
  std::vector<std::string> class_names;  // by number; empty if the data have no names
  std::int64_t steps_per_epoch = 0;
};

/// The content of `summary.json`.
struct Summary {
  std::string status;    // "running", "finished", "stopped" (by a signal, resumable), "failed"
  std::string error;     // of a failed run
  std::string ended_by;  // the key of the config that ended a finished run: "epochs"
  std::int64_t epochs = 0;
  std::int64_t steps = 0;
  int world_size = 1;
  std::string launcher;
  std::string backend;
  std::string device;
  std::string device_model;  // of a GPU
  std::string precision;
  std::string averaging;
  std::string execution;                                    // "graph" or "eager"
  std::vector<std::string> gpu_kernels;                     // that replace operations of LibTorch
  std::map<std::string, std::string> rejected_gpu_kernels;  // with reasons
  int threads_per_process = 1;
  std::int64_t parameters = 0;                // of the model
  std::optional<std::int64_t> multiply_adds;  // for one image, if the layers are known
  double startup_seconds = 0;                 // from the start of the attempt to its first step
  double train_seconds = 0;
  double test_seconds = 0;
  double wall_seconds = 0;  // of this command
  double samples_per_second = 0;
  std::optional<double> test_loss;
  std::optional<double> test_accuracy;
  std::optional<double> best_test_accuracy;  // of the best checkpoint
  std::optional<std::int64_t> best_epoch;
  std::optional<double> validation_accuracy;  // with a validation set only
  std::optional<double> best_validation_accuracy;
  std::int64_t samples_seen = 0;
  std::int64_t restarts = 0;
  std::int64_t peak_memory_bytes = 0;  // of the largest process
  double checkpoint_seconds = 0;       // of this command
  double report_seconds = 0;           // of this command
  std::string config_hash;
  std::string data_hash;
};

/// Writes `summary.json` atomically. Throws Error(kRunFailed).
void write_summary(const std::filesystem::path& path, const Summary& summary);

/// Changes a summary from "running" to "failed". Leaves any other status unchanged and ignores
/// errors, because the failure itself matters more.
void record_failure(const std::filesystem::path& path, const std::string& error);

/// Changes a summary from "running" to "stopped", for a run that could not do so itself.
void record_stop(const std::filesystem::path& path);

/// Returns the number of steps if the summary says "finished".
std::optional<std::int64_t> finished_steps(const std::filesystem::path& path);

/// Writes a JSON list of test accuracies in [0,1], one per epoch, atomically. Throws
/// Error(kRunFailed).
void write_accuracies(const std::filesystem::path& path, const std::vector<double>& accuracies);

/// Returns the length of such a list, 0 if there is none.
std::size_t count_accuracies(const std::filesystem::path& path);

}  // namespace mnist_train::report
