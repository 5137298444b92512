#pragma once

#include <optional>
#include <string>

#include "base/error.h"

namespace mnist_train::launch {

/// What a worker tells its launcher about its own end, in one write to a pipe.
struct FailureReport {
  ExitCode code = ExitCode::kRunFailed;
  std::string message;
  std::string host;
  bool is_victim = false;  // failed only because another rank did
};

/// The beginning of the message where memory has run out: what can be lowered.
inline constexpr const char* kOutOfMemory =
    "out of memory: lower batch_size, test_batch_size or the number of processes";

/// At most 64 KiB; a longer message loses its end.
std::string to_text(const FailureReport& report);

/// Nothing when `text` is empty, was cut off or is something else: the process died before it could
/// report.
std::optional<FailureReport> failure_from_text(const std::string& text);

/// The report for an exception that ended this process.
FailureReport report_for(const std::exception& error);

}  // namespace mnist_train::launch
