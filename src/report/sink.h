#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>

#include "report/records.h"
#include "report/summary.h"

namespace mnist_train::report {

/// How long the append-only files of a run are. A checkpoint holds it, so that a run that resumes
/// from it can cut them back.
struct LogPositions {
  std::int64_t metrics_bytes = 0;
  std::int64_t event_bytes = 0;  // of TensorBoard's file; 0: none
};

/// A place that the progress and the results of a run are written to, by rank 0 alone. Every method
/// may throw Error(kRunFailed).
class Sink {
 public:
  virtual ~Sink() = default;

  /// The run starts, or resumes.
  virtual void begin(const RunStart& /*start*/, const Summary& /*summary*/) {}
  /// A step is done; called after each one, so it must cost next to nothing.
  virtual void tick(std::int64_t /*epoch*/, std::int64_t /*step_in_epoch*/) {}
  /// Every `log_interval` steps.
  virtual void step(const StepRecord& /*record*/) {}
  virtual void epoch(const EpochResult& /*result*/) {}
  /// Now and then: what shows the state of the run is brought up to date.
  virtual void refresh(const Summary& /*summary*/) {}
  /// The run has finished, or was stopped, as the summary says.
  virtual void end(const Summary& /*summary*/) {}

  /// Enters the length of its file, if that is append-only.
  virtual void add_position(LogPositions& /*positions*/) const {}
};

/// Makes a sink without which a run continues: when it cannot be made or written to, that is logged
/// as a warning, once, with `name` ("its page").
std::unique_ptr<Sink> optional_sink(const char* name,
                                    const std::function<std::unique_ptr<Sink>()>& make);

/// Makes the sink that keeps `report.html` in the run folder up to date.
std::unique_ptr<Sink> page_sink(const std::filesystem::path& run_folder);

/// Makes the sink that keeps the summary at `path` up to date.
std::unique_ptr<Sink> summary_sink(const std::filesystem::path& path);

/// Makes the sink that writes the list of test accuracies to `path` after each epoch.
std::unique_ptr<Sink> accuracies_sink(const std::filesystem::path& path);

}  // namespace mnist_train::report
