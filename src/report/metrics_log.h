#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <vector>

#include "base/file.h"

namespace mnist_train::report {

/// A line of metrics.jsonl with "event": "step".
struct StepRecord {
  std::int64_t epoch = 0;  // from 1
  std::int64_t step = 0;   // of the run, from 1
  double loss = 0;         // mean over the global batch
  double learning_rate = 0;
  double samples_per_second = 0;  // since the record before
  double accuracy = 0;            // of the global batch, as it was seen
};

/// A line with "event": "epoch".
struct EpochRecord {
  std::int64_t epoch = 0;  // from 1
  std::int64_t step = 0;
  double train_loss = 0;  // mean over the epoch's samples, as they were seen
  double train_accuracy = 0;
  double test_loss = 0;
  double test_accuracy = 0;
  double train_seconds = 0;
  double test_seconds = 0;
  double samples_per_second = 0;
  std::optional<double> validation_loss;  // where samples are held out
  std::optional<double> validation_accuracy;
};

/// Where the seconds since the epoch record before went, on rank 0. Empty: not measured (on a GPU,
/// which does the first three at the same time, behind the host's back).
struct TimeSplit {
  std::optional<double> input;
  std::optional<double> compute;
  std::optional<double> communication;  // waiting for other ranks included
  double evaluation = 0;
  double checkpoint = 0;  // waiting for checkpoints: that of the epoch before, mostly
  double report = 0;      // page, predictions, events
};

/// The steps of one rank in one epoch.
struct RankTimes {
  std::int64_t rank = 0;
  std::int64_t steps = 0;
  double input = 0;  // seconds, as in TimeSplit
  double compute = 0;
  double communication = 0;
  double median_step = 0;
  double p95_step = 0;
  double longest_step = 0;
};

/// What an epoch record says beside its numbers.
struct EpochDetails {
  TimeSplit seconds;
  std::vector<RankTimes> ranks;  // of those that were measured
  std::int64_t classes = 0;
  std::vector<std::int64_t> confusion;  // [classes, classes]: test images by truth, by guess
};

/// `metrics.jsonl`: one JSON object a line, appended line by line, so a run that is killed leaves
/// whole lines.
class MetricsLog {
 public:
  /// Opens the file and cuts it back to `keep_bytes`: what was written after the checkpoint that a
  /// run goes on from is written again. Throws Error(kRunFailed).
  MetricsLog(const std::filesystem::path& path, std::int64_t keep_bytes);

  void write(const StepRecord& record);
  void write(const EpochRecord& record, const EpochDetails& details = {});
  /// What a checkpoint notes for `keep_bytes`.
  std::int64_t bytes() const { return bytes_; }

 private:
  void write_line(const std::string& line);

  std::filesystem::path path_;
  UniqueFd fd_;
  std::int64_t bytes_ = 0;
};

}  // namespace mnist_train::report
