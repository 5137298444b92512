#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "report/summary.h"

namespace mnist_train::report {

/// One start of a run: the first, a restart after a lost process, or a resume.
struct RunStart {
  std::string host;
  std::string resumed_from;  // the checkpoint; empty: from the beginning
  std::int64_t epoch = 0;    // finished epochs
  std::int64_t step = 0;
  std::int64_t samples_seen = 0;
  std::int64_t train_images = 0;
  std::int64_t validation_images = 0;
  std::int64_t test_images = 0;
  std::int64_t image_channels = 0;
  std::int64_t image_height = 0;
  std::int64_t image_width = 0;
  std::int64_t classes = 0;
  std::vector<std::string> class_names;  // by number, where the data have names
  std::int64_t steps_per_epoch = 0;
};

/// Appends a line to `lineage.jsonl`: when and from where a run was started, and with what
/// (processes, device, precision, versions, hashes: those of `summary`). It is never cut back.
/// Throws Error(kRunFailed).
void append_lineage(const std::filesystem::path& path, const RunStart& start,
                    const Summary& summary);

}  // namespace mnist_train::report
