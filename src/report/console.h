#pragma once

#include <cstdint>
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "report/sink.h"

namespace mnist_train::report {

/// What a terminal shows beside plain text.
struct TerminalStyle {
  bool colours = false;
  bool utf8 = false;
};

/// Returns the style that environment variables ask for: no colours where NO_COLOR is set and not
/// empty (no-color.org) or TERM is "dumb"; UTF-8 where the locale's variables (LC_ALL, LC_CTYPE,
/// LANG: the first that is set) say so. `variable` returns null for one that is not set.
TerminalStyle terminal_style(
    const std::function<const char*(const char* name)>& variable = &std::getenv);

/// Returns the last `width` of `values` as bars one character wide, from the least to the greatest.
std::string sparkline(const std::vector<double>& values, std::size_t width, bool utf8);

/// Returns a number with commas: "12,345".
std::string with_thousands(std::int64_t number);

/// The epochs of a run as lines of one table, as a terminal shows them.
class EpochTable {
 public:
  EpochTable(std::int64_t epochs, TerminalStyle style) : epochs_(epochs), style_(style) {}

  /// Returns the line of this epoch, below the head of the table when it is the first, for a
  /// terminal of that many columns. The last column is a sparkline of the test accuracy so far.
  std::string lines(const EpochRecord& record, std::size_t columns);

 private:
  std::int64_t epochs_;
  TerminalStyle style_;
  std::vector<double> accuracies_;
};

/// Where and how a run's progress is shown.
struct ConsoleSetup {
  bool quiet = false;
  bool is_terminal = false;  // draws a bar
  TerminalStyle style;
  int fd = 2;
  std::int64_t epochs = 0;
  std::int64_t steps_per_epoch = 0;
};

/// Makes the sink that shows progress as a person reads it, on standard error: on a terminal a bar,
/// redrawn at most ten times a second, and a table of epochs, elsewhere plain lines, nothing when
/// quiet.
std::unique_ptr<Sink> console_sink(const ConsoleSetup& setup);

}  // namespace mnist_train::report
