#pragma once

#include <cstdint>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "report/records.h"

namespace mnist_train::report {

/// The epoch that a run's best checkpoint is of.
struct BestEpoch {
  std::int64_t epoch = 0;  // from 1
  double test_accuracy = 0;
};

/// The content of a run folder that pages are made from.
struct RunFiles {
  std::string name;  // the folder's name behind that of its parent
  std::filesystem::path folder;
  bool live = false;                   // whether a process is writing there
  std::string config_text;             // empty without a config
  nlohmann::json config;               // null without a config
  nlohmann::json summary;              // null without a summary
  std::vector<nlohmann::json> starts;  // lines of lineage.jsonl
  std::vector<StepRecord> steps;
  std::vector<EpochResult> epochs;  // of metrics.jsonl; numbers missing there are NaN or 0
  std::vector<Prediction> predictions;
  std::vector<Mistake> mistakes;         // those of `predictions` where the run kept no others
  std::vector<std::string> class_names;  // by number; empty where the data have none
  double seconds_since_start = 0;        // since the last start; 0 when not live

  /// Returns a figure of the last epoch, NaN without epochs.
  double last(double EpochRecord::*figure) const;
  /// Returns whether samples are held out for validation, so that `best_epoch` goes by them.
  bool holds_out() const;
  /// Returns the epoch that the run chose as its best: the first with the highest accuracy on the
  /// validation set, or on the test set if nothing is held out. Nothing without epochs.
  std::optional<BestEpoch> best_epoch() const;
  /// Returns a class's name, or its number where it has none.
  std::string class_name(std::int64_t label) const;
  /// Returns "running", "finished", "stopped", "failed", or "interrupted" for a run that ended
  /// without recording why.
  std::string status() const;
  /// Returns the value of a key in the summary, or else in the last start; null where it is in
  /// neither.
  const nlohmann::json& fact(const std::string& key) const;
  /// Returns a fact that is a number, NaN where it is not.
  double number(const std::string& key) const;
  /// Returns a fact that is text, nothing where it is not.
  std::string text(const std::string& key) const;
};

/// Returns the number under a key of a JSON object, NaN where there is none.
double number_in(const nlohmann::json& object, const std::string& key);
/// Returns the text under a key of a JSON object, nothing where there is none.
std::string text_in(const nlohmann::json& object, const std::string& key);

/// Returns whether a folder holds what a page can be made from.
bool has_page_data(const std::filesystem::path& folder);

/// Reads a run folder, also again and again while its run lasts: of metrics.jsonl only what is new.
class RunReader {
 public:
  explicit RunReader(const std::filesystem::path& folder);

  /// Reads the folder as it is now; an unfinished last line of metrics.jsonl is left for the next
  /// time. Throws Error(kData) naming file and line of what cannot be read, and Error(kConfig) when
  /// the folder holds no run.
  RunFiles& read();

 private:
  void read_mistakes();
  void read_metrics();

  RunFiles run_;
  std::int64_t metrics_bytes_ = 0;  // read so far
  std::int64_t metrics_lines_ = 0;
};

}  // namespace mnist_train::report
