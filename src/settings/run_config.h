#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "settings/data_options.h"
#include "settings/launch_options.h"
#include "settings/model_options.h"
#include "settings/train_options.h"
#include "strict_json/document.h"
#include "strict_json/schema_fwd.h"

namespace mnist_train::settings {

/// When a run is saved, and what is kept of it.
struct CheckpointOptions {
  std::int64_t every_epochs = 1;  // 0: never by epoch
  std::optional<std::int64_t> every_steps;
  std::int64_t keep = 3;  // newest files, at least 1
  bool keep_best = true;

  bool operator==(const CheckpointOptions&) const = default;
};

/// Guesses that a run shows, image by image.
struct PredictionsOptions {
  std::int64_t batches = 10;
  std::int64_t images_per_batch = 32;

  bool operator==(const PredictionsOptions&) const = default;
};

/// What a run shows of itself.
struct ReportOptions {
  bool html = true;
  bool tensorboard = true;
  bool histograms = false;
  PredictionsOptions predictions;

  bool operator==(const ReportOptions&) const = default;
};

/// Everything that a config file says. Defaults are the program's.
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

/// Every key of a config file.
const strict_json::Schema<RunConfig>& run_config_schema();

/// Adds what is wrong with the keys and values of one layer: they are checked in the text that has
/// them, whatever is laid over it. Rules over several keys are not, as other layers may keep them.
void check_layer(const strict_json::Node& layer, strict_json::Problems& problems);

/// Reads and checks the merged document. Throws Error(kConfig) with ALL problems, one a line as
/// `FILE:LINE:COLUMN: /pointer: message`; `problems` are those that were found before.
RunConfig read_run_config(const strict_json::Node& root, strict_json::Problems problems = {});

/// The same of one text that was a sound config before: a job's, a checkpoint's.
RunConfig parse_run_config(strict_json::Source source);

/// The effective config as JSON text (2 spaces, contract order, trailing newline), every key with
/// its value; `output` only when asked. Reading it again gives the same RunConfig.
std::string write_run_config(const RunConfig& config, bool with_output);

/// The JSON Schema (draft 2020-12) of a config file, as text.
std::string write_run_config_schema();

}  // namespace mnist_train::settings
