#pragma once

#include <cstdint>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "report/records.h"

namespace mnist_train::report {

/// The epoch of a run's best checkpoint.
struct BestEpoch {
  std::int64_t epoch = 0;  // from 1
  double test_accuracy = 0;
};

/// The content of a run folder, for pages.
struct RunFiles {
  std::string name;  // the folder's name after that of its parent
  std::filesystem::path folder;
  bool live = false;                                // a process is writing there
  std::string config_text;                          // empty without a config
  nlohmann::json config;                            // null without a config
  nlohmann::json summary;                           // null without a summary
  nlohmann::json dataset;                           // dataset.json; null without one
  std::vector<nlohmann::json> starts;               // lines of lineage.jsonl
  nlohmann::json facts = nlohmann::json::object();  // of the summary, else of the last start
  std::vector<StepRecord> steps;
  std::vector<EpochResult> epochs;  // of metrics.jsonl; only the last has its confusion matrix
  std::vector<Mistake> mistakes;
  std::vector<std::string> class_names;  // by number; empty if the data have no names
  double seconds_since_start = 0;        // since the last start; 0 if not live

  /// Returns a figure of the last epoch, NaN without epochs.
  double last(double EpochRecord::*figure) const {
    return epochs.empty() ? kUnknown : epochs.back().record.*figure;
  }
  /// Whether there is a validation set, which then decides on the best epoch.
  bool holds_out() const;
  /// Returns the figure that chose the best checkpoint.
  settings::BestBy best_by() const;
  /// Returns the first epoch with the best figure of the validation set, or of the test set if
  /// there is no validation set. Nothing without epochs.
  std::optional<BestEpoch> best_epoch() const;
  /// Returns the name of a class, or its number if it has none.
  std::string class_name(std::int64_t label) const;
  /// Returns the number of images of a class in a split ("train"), NaN if it is not known.
  double class_size(std::int64_t label, const char* split) const;
  /// Returns "running", "finished", "stopped", "failed", or "interrupted" for a run that ended
  /// without recording why.
  std::string status() const;
};

/// Returns the value under a key of a JSON object, else null.
const nlohmann::json& value_in(const nlohmann::json& object, const std::string& key);
/// Returns the number under a key of a JSON object, else NaN.
double number_in(const nlohmann::json& object, const std::string& key);
/// Returns the text under a key of a JSON object, else nothing.
std::string text_in(const nlohmann::json& object, const std::string& key);

/// Whether a folder holds enough for a page.
bool has_page_data(const std::filesystem::path& folder);

/// Reads a run folder, also while the run lasts: a partial last line of metrics.jsonl is left out.
/// Throws Error(kData) with file and line of invalid content, and Error(kConfig) if the folder
/// holds no run.
RunFiles read_run(const std::filesystem::path& folder);

/// Returns an HTML page on one run, or one that compares several. It is self-contained, and its
/// content policy allows nothing else: style and script carry the page's nonce, so text from a run
/// cannot add any. The page of a live run refreshes itself.
std::string make_page(std::span<const RunFiles> runs);

/// Returns the page on the current content of run folders. Throws Error.
std::string page_on(const std::vector<std::filesystem::path>& folders);

/// Writes the last page of a failed run. Ignores errors, because the failure of the run is about to
/// be reported.
void write_last_page(const std::filesystem::path& folder);

}  // namespace mnist_train::report
