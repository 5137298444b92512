#pragma once

/// The names of the program's own files in a run folder, which no config key may choose.
namespace mnist_train::settings::run_files {

inline constexpr const char* kConfig = "config.json";
inline constexpr const char* kMetrics = "metrics.jsonl";
inline constexpr const char* kSummary = "summary.json";
inline constexpr const char* kPredictions = "predictions.jsonl";
inline constexpr const char* kLineage = "lineage.jsonl";
inline constexpr const char* kPage = "report.html";
inline constexpr const char* kEvents = "events.out.tfevents.";  // the beginning of their names
inline constexpr const char* kLock = ".lock";
inline constexpr const char* kCheckpoints = "checkpoints";
inline constexpr const char* kLogs = "logs";

}  // namespace mnist_train::settings::run_files
