#pragma once

#include <filesystem>
#include <utility>

#include "report/sink.h"

namespace mnist_train::report {

/// `lineage.jsonl`: each start of a run appends a line, which is never cut back: when and from
/// where it was started, and with what (processes, device, precision, versions, hashes).
class LineageFile : public Sink {
 public:
  explicit LineageFile(std::filesystem::path path) : path_(std::move(path)) {}

  void begin(const RunStart& start, const Summary& summary) override;

 private:
  std::filesystem::path path_;
};

}  // namespace mnist_train::report
