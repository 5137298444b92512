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

namespace mnist_train::settings {

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
