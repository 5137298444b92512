#pragma once

#include <cstdint>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "report/metrics_log.h"
#include "report/predictions.h"

namespace mnist_train::report {

/// An epoch as `metrics.jsonl` has it. Numbers that are missing there are NaN.
struct EpochEntry {
  EpochRecord record;
  EpochDetails details;
};

/// A run as its folder tells it: everything that a page is made from.
struct RunFiles {
  std::string name;  // what people call it: the folder with the one above
  std::filesystem::path folder;
  bool live = false;                   // a process is writing there
  std::string config_text;             // empty where there is none
  nlohmann::json config;               // null where there is none
  nlohmann::json summary;              // null where there is none
  std::vector<nlohmann::json> starts;  // lines of lineage.jsonl
  std::vector<StepRecord> steps;
  std::vector<EpochEntry> epochs;
  std::vector<Prediction> predictions;
  std::vector<std::string> class_names;  // by number; empty where the data have none
  double seconds_since_start = 0;        // of the last start, by the clock; 0 when not live

  /// Null without epochs.
  const EpochRecord* last_epoch() const;
  /// The first of those with the highest test accuracy; null without epochs.
  const EpochRecord* best_epoch() const;
  /// What a class is called: its name, else its number.
  std::string class_name(std::int64_t label) const;
  /// "running", "finished", "stopped", "failed", or "interrupted": it ended and could not say why.
  std::string status() const;
  /// What the newest of summary and starts says under a key; null where none does.
  const nlohmann::json& fact(const std::string& key) const;
  double number(const std::string& key) const;  // NaN where there is none
  std::string text(const std::string& key) const;
};

/// The number under a key of an object, NaN where there is none.
double number_in(const nlohmann::json& object, const std::string& key);
/// The text under a key of an object, empty where there is none.
std::string text_in(const nlohmann::json& object, const std::string& key);

/// Reads a run folder, again and again while the run lasts: metrics.jsonl only from where the last
/// reading ended.
class RunReader {
 public:
  explicit RunReader(const std::filesystem::path& folder);

  /// Throws Error(kData) naming file and line of what cannot be read, Error(kConfig) when the
  /// folder holds no run. An unfinished last line is left for the next time.
  RunFiles& read();

 private:
  void read_metrics();

  RunFiles run_;
  std::int64_t metrics_bytes_ = 0;  // read so far
  std::int64_t metrics_lines_ = 0;
};

}  // namespace mnist_train::report
