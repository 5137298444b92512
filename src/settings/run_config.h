#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "settings/data_options.h"
#include "settings/model_options.h"
#include "settings/train_options.h"
#include "strict_json/document.h"

namespace mnist_train::settings {

/// The names of the program's own files in a run folder, which no config key may choose.
namespace run_files {

inline constexpr const char* kConfig = "config.json";
inline constexpr const char* kMetrics = "metrics.jsonl";
inline constexpr const char* kSummary = "summary.json";
inline constexpr const char* kPredictions = "predictions.jsonl";
inline constexpr const char* kMistakes = "mistakes.jsonl";
inline constexpr const char* kLineage = "lineage.jsonl";
inline constexpr const char* kPage = "report.html";
inline constexpr const char* kEvents = "events.out.tfevents.";  // the beginning of their names
inline constexpr const char* kLock = ".lock";
inline constexpr const char* kCheckpoints = "checkpoints";
inline constexpr const char* kLogs = "logs";

}  // namespace run_files

/// How many processes there are, and what happens when one is lost.
struct LaunchOptions {
  std::optional<std::int64_t> processes_per_node;  // none: one per GPU, or one per core up to 2
  std::int64_t max_restarts = 2;
  double rendezvous_timeout_s = 60;
  double hang_timeout_s = 300;
  std::optional<std::int64_t> threads_per_process;  // none: the cores divided by the processes
  std::vector<std::string> devices;  // a process on each: "cpu", "cuda:1"; empty: chosen by rank

  bool operator==(const LaunchOptions&) const = default;
};

/// When checkpoints are written, and which are kept.
struct CheckpointOptions {
  std::int64_t every_epochs = 1;  // 0: none after epochs
  std::optional<std::int64_t> every_steps;
  std::int64_t keep = 3;  // newest files, at least 1
  bool keep_best = true;

  bool operator==(const CheckpointOptions&) const = default;
};

/// Which predictions a run shows, image by image.
struct PredictionsOptions {
  std::int64_t batches = 10;
  std::int64_t images_per_batch = 32;

  bool operator==(const PredictionsOptions&) const = default;
};

/// What a run shows about itself.
struct ReportOptions {
  bool html = true;
  bool tensorboard = true;
  bool histograms = false;
  PredictionsOptions predictions;

  bool operator==(const ReportOptions&) const = default;
};

/// Everything that a config file can say, with the program's defaults.
struct RunConfig {
  TrainOptions train;
  ModelOptions model;
  DataOptions data;
  CheckpointOptions checkpoint;
  LaunchOptions launch;
  ReportOptions report;
  std::optional<std::filesystem::path> output;  // absolute; none: runs/<config name>/<start time>
  std::string model_file = "model.pt";          // within the run folder
  std::string accuracies_file = "accuracies.json";

  bool operator==(const RunConfig&) const = default;
};

/// Returns the layers of a config, at least one, each of them laid over those before it as
/// strict_json::merge does. A layer that gives one of two keys that exclude each other
/// (data.format) drops the other one (data.dataset) from those below it. One that gives another
/// model, schedule or format drops the keys that belonged to the one below. Keys that are valid
/// together need no order: a layer that gives data.train alone keeps it, whether data.format
/// changes above it or below.
strict_json::Node merge_layers(std::vector<strict_json::Node> layers);

/// Adds to `problems` what is wrong with the keys and values of one layer of the config, whatever
/// other layers say. Rules over several keys are left out, because other layers may satisfy them.
void check_layer(const strict_json::Node& layer, strict_json::Problems& problems);

/// Reads and checks the merged document. Throws Error(kConfig) with all problems, one on each line
/// as `FILE:LINE:COLUMN: /pointer: message`; `problems` are those that were found before.
RunConfig read_run_config(const strict_json::Node& root, strict_json::Problems problems = {});

/// Reads a single text that was a valid config before, such as that of a job or a checkpoint.
RunConfig parse_run_config(strict_json::Source source);

/// Returns the effective config as JSON text (2 spaces, contract order, trailing newline), every
/// key with its value; `output` only when asked. Reading it again gives the same RunConfig.
std::string write_run_config(const RunConfig& config, bool with_output);

/// Returns the JSON Schema (draft 2020-12) of a config file, as text.
std::string write_run_config_schema();

}  // namespace mnist_train::settings
