#pragma once

#include <exception>
#include <optional>
#include <string>

#include "base/error.h"
#include "launch/status_board.h"

namespace mnist_train::launch {

/// Why a worker ended, as it tells its launcher in one write to a pipe.
struct FailureReport {
  ExitCode code = ExitCode::kRunFailed;
  std::string message;
  std::string host;
  bool is_victim = false;  // it failed only because another rank did
};

/// How the message begins where memory has run out: it says what can be lowered.
inline constexpr const char* kOutOfMemory =
    "out of memory: lower batch_size, test_batch_size or the number of processes";

/// Returns the report as text of at most 64 KiB, so that it fits into a pipe that nobody reads yet;
/// a longer message loses its end.
std::string to_text(const FailureReport& failure);

/// Returns the report that a text holds; nothing where the text is empty, was cut off or is
/// something else, because the process died before it could report.
std::optional<FailureReport> failure_from_text(const std::string& text);

/// Returns the report for an exception that ended this process.
FailureReport report_for(const std::exception& error);

/// Returns whether a failure is one that the user has to mend, in the config, the data or a file of
/// weights. Its message says all there is to know: which process met it first does not matter.
bool is_users_mistake(ExitCode code, Phase phase);

/// Tells torchrun, and programs that have taken over its convention, why this process ends: writes
/// the file that TORCHELASTIC_ERROR_FILE names, in the form that torchrun reads. Does nothing where
/// the variable is not set; a file that cannot be written is a warning.
void write_elastic_error_file(const std::string& message);

}  // namespace mnist_train::launch
