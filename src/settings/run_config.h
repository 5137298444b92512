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

/// Names of the program's own files in a run folder, which config keys must not use.
namespace run_files {

inline constexpr const char* kConfig = "config.json";
inline constexpr const char* kMetrics = "metrics.jsonl";
inline constexpr const char* kSummary = "summary.json";
inline constexpr const char* kPredictions = "predictions.jsonl";
inline constexpr const char* kMistakes = "mistakes.jsonl";
inline constexpr const char* kLineage = "lineage.jsonl";
inline constexpr const char* kDataset = "dataset.json";
inline constexpr const char* kPage = "report.html";
inline constexpr const char* kEvents = "events.out.tfevents.";  // prefix of their names
inline constexpr const char* kLock = ".lock";
inline constexpr const char* kCheckpoints = "checkpoints";
inline constexpr const char* kLogs = "logs";

}  // namespace run_files

/// The number of processes, and the handling of lost ones.
struct LaunchOptions {
  std::optional<std::int64_t> processes_per_node;  // none: one per GPU, or one per core, up to 2
  std::int64_t max_restarts = 2;
  double rendezvous_timeout_s = 60;
  double hang_timeout_s = 300;
  std::optional<std::int64_t> threads_per_process;  // none: 1, OMP_NUM_THREADS or cores / processes
  std::vector<std::string> devices;  // one per process: "cpu", "cuda:1"; empty: by rank
};

/// Metric that selects the best checkpoint, on the validation set if there is one.
enum class BestBy { kAccuracy, kBalancedAccuracy, kLoss };

/// When checkpoints are written, and which are kept.
struct CheckpointOptions {
  std::int64_t every_epochs = 1;  // 0: none at the end of epochs
  std::optional<std::int64_t> every_steps;
  std::int64_t keep = 3;  // number of newest files, at least 1
  bool keep_best = true;
  BestBy best_by = BestBy::kAccuracy;
};

/// Per-image predictions that a run shows.
struct PredictionsOptions {
  std::int64_t batches = 10;
  std::int64_t images_per_batch = 32;
};

struct ReportOptions {
  bool html = true;
  bool tensorboard = true;
  bool histograms = false;
  PredictionsOptions predictions;
};

/// All config keys with their defaults.
struct RunConfig {
  TrainOptions train;
  ModelOptions model;
  DataOptions data;
  CheckpointOptions checkpoint;
  LaunchOptions launch;
  ReportOptions report;
  std::optional<std::filesystem::path> output;  // absolute; none: runs/<config name>/<start time>
  std::string model_file = "model.pt";          // relative to the run folder
  std::string accuracies_file = "accuracies.json";
};

/// Merges one or more config layers; later ones override earlier ones. If a layer sets one of two
/// exclusive keys (such as data.format), the other (data.dataset) is dropped from lower layers. If
/// a layer changes the model, schedule or format, keys that belong to the previous one are dropped.
/// Layers that set different keys can be merged in any order if all these keys are valid together.
strict_json::Node merge_layers(std::vector<strict_json::Node> layers);

/// Adds the errors in keys and values of one config layer to `problems`. Rules that involve
/// multiple keys are skipped, because other layers may satisfy them.
void check_layer(const strict_json::Node& layer, strict_json::Problems& problems);

/// Reads and checks the merged document, and adds its errors to `problems`. Keys with errors keep
/// their defaults. Requires that the document is an object.
RunConfig read_run_config(const strict_json::Node& root, strict_json::Problems& problems);

/// Reads a config that has already been validated, such as that of a job or a checkpoint. Throws
/// Error(kConfig) with all problems, one per line: `FILE:LINE:COLUMN: /pointer: message`.
RunConfig parse_run_config(strict_json::Source source);

/// Returns the effective config as JSON text (indented by 2, keys in documented order, with a
/// trailing newline). Contains all keys that apply, but `output` only on request. Reading the text
/// returns an equal RunConfig.
std::string write_run_config(const RunConfig& config, bool has_output);

/// Returns the JSON Schema (draft 2020-12) of config files as text.
std::string write_run_config_schema();

/// Returns {key: [old, new]} for each key with different values, such as {"data.size": [null, 96]}.
nlohmann::json config_changes(const RunConfig& before, const RunConfig& now);

/// Returns a string, such as "seed was 1 and is now 5", for each differing key that affects how
/// steps are computed or, with `of_data`, that determines the samples of a run and their location.
std::vector<std::string> config_differences(const RunConfig& before, const RunConfig& now,
                                            bool of_data = false);

}  // namespace mnist_train::settings
