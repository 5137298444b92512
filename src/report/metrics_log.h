#pragma once

#include <cstdint>
#include <filesystem>

#include "base/file.h"
#include "report/sink.h"

namespace mnist_train::report {

/// `metrics.jsonl`: one JSON object a line, appended line by line, so a run that is killed leaves
/// whole lines.
class MetricsLog : public Sink {
 public:
  /// Opens the file and cuts it back to `keep_bytes`: what was written after the checkpoint that a
  /// run resumes from is written again. Throws Error(kRunFailed).
  MetricsLog(const std::filesystem::path& path, std::int64_t keep_bytes);

  void step(const StepRecord& record) override;
  void epoch(const EpochResult& result) override;
  void add_position(LogPositions& positions) const override { positions.metrics_bytes = bytes_; }

 private:
  void write_line(const std::string& line);

  std::filesystem::path path_;
  UniqueFd fd_;
  std::int64_t bytes_ = 0;
};

}  // namespace mnist_train::report
