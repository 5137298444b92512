#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "report/epoch_table.h"
#include "report/sink.h"

namespace mnist_train::report {

/// Returns the time as "1:05" or "2:01:05", rounded to seconds.
std::string clock_text(double seconds);

/// Where and how a run's progress is shown.
struct ConsoleSetup {
  bool quiet = false;
  bool is_terminal = false;  // draws a bar
  bool has_head = false;     // an earlier attempt has drawn the head of the table of epochs
  TerminalStyle style;
  int fd = 2;
  std::int64_t epochs = 0;
  std::int64_t steps_per_epoch = 0;
  std::optional<std::int64_t> max_steps;
};

/// Makes the sink that shows progress as a person reads it, on standard error: on a terminal a line
/// with the time that is left and a bar, redrawn at most ten times a second, and a table of epochs,
/// both as wide as the terminal is at that moment; elsewhere plain lines, nothing when quiet.
std::unique_ptr<Sink> console_sink(const ConsoleSetup& setup);

}  // namespace mnist_train::report
