#pragma once

#include <filesystem>
#include <utility>

#include "report/sink.h"

namespace mnist_train::report {

/// The file `lineage.jsonl`, to which each start of a run appends a line that is never removed:
/// when and from where it was started, and with what (processes, device, precision, versions,
/// hashes).
class LineageFile : public Sink {
 public:
  explicit LineageFile(std::filesystem::path path) : path_(std::move(path)) {}

  void begin(const RunStart& start, const Summary& summary) override;

 private:
  std::filesystem::path path_;
};

}  // namespace mnist_train::report
