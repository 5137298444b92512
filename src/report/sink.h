#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "report/records.h"
#include "report/summary.h"

namespace mnist_train::report {

/// How long the append-only files of a run are. A checkpoint holds it, so that a run that resumes
/// from it can cut them back.
struct LogPositions {
  std::int64_t metrics_bytes = 0;
  std::int64_t event_bytes = 0;  // of TensorBoard's file; 0: none
};

/// Where a run is.
struct StepPosition {
  std::int64_t epoch = 0;          // from 1
  std::int64_t step_in_epoch = 0;  // steps of the epoch that are done
  std::int64_t step = 0;           // of the run
};

/// How the steps of about the last second went.
struct Pace {
  double loss = 0;  // mean over their samples
  double samples_per_second = 0;
  double step_seconds = 0;
};

/// A place that the progress and the results of a run are written to, by rank 0 alone. Every method
/// may throw Error(kRunFailed), as may the functions below that make sinks.
class Sink {
 public:
  virtual ~Sink() = default;

  /// Says that the run starts, or resumes.
  virtual void begin(const RunStart& /*start*/, const Summary& /*summary*/) {}
  /// Says where the run is; called after each step, so it must cost next to nothing.
  virtual void tick(const StepPosition& /*position*/) {}
  /// Says how the last steps went; called about once a second, before `step`.
  virtual void pace(const Pace& /*pace*/) {}
  /// Records a step; called every `log_interval` steps.
  virtual void step(const StepRecord& /*record*/) {}
  /// Records a finished epoch.
  virtual void epoch(const EpochResult& /*result*/) {}
  /// Brings what shows the state of the run up to date; called now and then.
  virtual void refresh(const Summary& /*summary*/) {}
  /// Says that the run has finished, or was stopped, as the summary tells.
  virtual void end(const Summary& /*summary*/) {}

  /// Returns the page that it keeps, if its last writing succeeded; else an empty path.
  virtual std::filesystem::path page() const { return {}; }

  /// Enters the length of its file, if that is append-only.
  virtual void add_position(LogPositions& /*positions*/) const {}
};

/// Makes a sink without which a run continues: when it cannot be made or written to, that is logged
/// as a warning, once, with `name` ("its page").
std::unique_ptr<Sink> optional_sink(const char* name,
                                    const std::function<std::unique_ptr<Sink>()>& make);

/// Makes the sink that appends to `metrics.jsonl`, line by line, so that a run that is killed
/// leaves whole lines. It cuts the file back to `keep_bytes` first: what was written after the
/// checkpoint that a run resumes from is written again.
std::unique_ptr<Sink> metrics_sink(const std::filesystem::path& path, std::int64_t keep_bytes);

/// Makes the sink that writes what a run shows in TensorBoard to `events.out.tfevents.*`, which it
/// opens as EventFile does. A file that begins gets TensorFlow's version record, and when the run
/// begins `config` (JSON) and the versions as texts.
std::unique_ptr<Sink> tensorboard_sink(const std::filesystem::path& run_folder,
                                       std::int64_t keep_bytes, const std::string& config);

/// Makes the sink that replaces `predictions.jsonl` by the predictions of each evaluation.
std::unique_ptr<Sink> predictions_sink(const std::filesystem::path& path,
                                       const std::vector<std::string>& class_names);

/// Makes the sink that replaces `mistakes.jsonl` by the mistakes of each evaluation, with pictures
/// as far as they keep within two megabytes.
std::unique_ptr<Sink> mistakes_sink(const std::filesystem::path& path,
                                    const std::vector<std::string>& class_names);

/// Makes the sink that keeps `report.html` in the run folder up to date.
std::unique_ptr<Sink> page_sink(const std::filesystem::path& run_folder);

/// Makes the sink that keeps `summary.json` in the run folder up to date, and for each start of the
/// run appends a line to `lineage.jsonl`, which is never removed: when and from where it was
/// started, and with what (processes, device, precision, versions, hashes).
std::unique_ptr<Sink> summary_sink(const std::filesystem::path& run_folder);

/// Makes the sink that writes the list of test accuracies to `path` after each epoch; beyond 1,000
/// epochs after each thousandth part of them, and at the end.
std::unique_ptr<Sink> accuracies_sink(const std::filesystem::path& path);

}  // namespace mnist_train::report
