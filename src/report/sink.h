#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/file.h"
#include "report/records.h"

namespace mnist_train::report {

/// Lengths of a run's append-only files. Checkpoints store them, so that a resumed run can truncate
/// the files.
struct LogPositions {
  std::int64_t metrics_bytes = 0;
  std::int64_t event_bytes = 0;  // of TensorBoard's file; 0: none
};

/// Progress of a run.
struct StepPosition {
  std::int64_t epoch = 0;          // from 1
  std::int64_t step_in_epoch = 0;  // finished steps of the epoch
  std::int64_t step = 0;           // of the run
};

/// Averages over the steps of about the last second.
struct Pace {
  double loss = 0;  // mean over their samples
  double samples_per_second = 0;
  double step_seconds = 0;
};

/// Measures the pace about once a second. The first step of a start is excluded as warm-up.
class PaceMeter {
 public:
  struct PacedStep {
    std::int64_t number = 0;        // of the run
    std::int64_t samples_seen = 0;  // in the run, including this step
    double loss = 0;                // sum over its samples
    double samples = 0;
    double finished_s = 0;  // CLOCK_MONOTONIC
  };

  /// Adds a finished step. Returns the pace if one is due.
  std::optional<Pace> add(const PacedStep& step);
  /// Excludes the time between the last step and `now_s`.
  void pause_until(double now_s);

 private:
  std::optional<PacedStep> last_;  // end of the previous interval
  double loss_ = 0;                // of the steps since then
  double samples_ = 0;
  double newest_s_ = 0;  // end of the last step or pause
  bool has_told_ = false;
};

/// Receives the progress and results of a run, on rank 0 only. Every method may throw
/// Error(kRunFailed), as may the functions below.
class Sink {
 public:
  virtual ~Sink() = default;

  /// The run starts or resumes.
  virtual void begin(const RunStart& /*start*/, const Summary& /*summary*/) {}
  /// A step is finished. Must be cheap.
  virtual void tick(const StepPosition& /*position*/) {}
  /// Called about once a second, before `step`.
  virtual void pace(const Pace& /*pace*/) {}
  /// Called every `log_interval` steps.
  virtual void step(const StepRecord& /*record*/) {}
  /// An epoch is finished and evaluated.
  virtual void epoch(const EpochResult& /*result*/) {}
  /// Called from time to time to update the displayed state of the run.
  virtual void refresh(const Summary& /*summary*/) {}
  /// The run has finished or was stopped, as the summary says.
  virtual void end(const Summary& /*summary*/) {}

  /// Path of the sink's page, empty if there is none or its last update failed.
  virtual std::filesystem::path page() const { return {}; }

  /// Stores the length of the sink's append-only file, if it has one.
  virtual void add_position(LogPositions& /*positions*/) const {}
};

/// Makes a sink whose failures do not end the run: the first one is logged as a warning with `name`
/// ("its page").
std::unique_ptr<Sink> optional_sink(const char* name,
                                    const std::function<std::unique_ptr<Sink>()>& make);

/// Appends to `metrics.jsonl` in whole lines, so a killed run leaves no partial ones. Truncates the
/// file to `keep_bytes` first: a resumed run rewrites everything after its checkpoint.
std::unique_ptr<Sink> metrics_sink(const std::filesystem::path& path, std::int64_t keep_bytes);

/// Appends to TensorBoard's `events.out.tfevents.*`, which it opens as EventFile does. A new file
/// starts with `config` (JSON) and the versions as texts.
std::unique_ptr<Sink> tensorboard_sink(const std::filesystem::path& run_folder,
                                       std::int64_t keep_bytes, const std::string& config);

/// Replaces `predictions.jsonl` and `mistakes.jsonl` after each evaluation. Lines have `id`, `file`
/// (the path in the test set's folder, if samples are files), `image`, `guess`, `truth`, then
/// `score_0`, … (or `top`, if not all classes are given) or `confidence`, and, if classes have
/// names, `guess_name` and `truth_name`. Mistakes have up to two megabytes of images.
std::unique_ptr<Sink> predictions_sink(const std::filesystem::path& run_folder,
                                       const std::vector<std::string>& class_names);

/// Keeps `report.html` in the run folder up to date.
std::unique_ptr<Sink> page_sink(const std::filesystem::path& run_folder);

/// Keeps `summary.json` in the run folder up to date, and appends a line to `lineage.jsonl` at each
/// start of the run.
std::unique_ptr<Sink> summary_sink(const std::filesystem::path& run_folder);

/// Writes the list of test accuracies after each epoch; beyond 1,000 epochs after each thousandth
/// of them, and at the end.
std::unique_ptr<Sink> accuracies_sink(const std::filesystem::path& path);

/// Returns the CRC-32C (Castagnoli, RFC 3720) that protects records of TensorBoard's files.
std::uint32_t crc32c(std::string_view bytes);

/// A file of TensorFlow's records (tensorflow/core/lib/io/record_writer.cc): length, its checksum,
/// content, its checksum.
class EventFile {
 public:
  /// Opens the newest such file of the run folder and truncates it at the end of a record to at
  /// most `keep_bytes`, or starts a new one. Throws Error(kRunFailed).
  EventFile(const std::filesystem::path& folder, std::int64_t keep_bytes);

  /// Appends a whole record or nothing. Throws Error(kRunFailed).
  void append(std::string_view content);
  const std::filesystem::path& path() const { return path_; }
  /// Length of the file, which a checkpoint stores for `keep_bytes`.
  std::int64_t bytes() const { return bytes_; }

 private:
  std::int64_t end_of_records(std::int64_t limit) const;

  std::filesystem::path path_;
  UniqueFd fd_;
  std::int64_t bytes_ = 0;
};

}  // namespace mnist_train::report
