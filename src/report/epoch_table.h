#pragma once

#include <cstdint>
#include <cstdlib>
#include <functional>
#include <string>
#include <vector>

#include "report/records.h"

namespace mnist_train::report {

/// What a terminal shows beside plain text.
struct TerminalStyle {
  bool colours = false;
  bool utf8 = false;
  bool redraws = false;  // lines can be drawn anew in place
};

/// Returns the style that environment variables ask for: no colours where NO_COLOR is set and not
/// empty (no-color.org) or TERM is "dumb", where nothing is redrawn either; UTF-8 where the
/// locale's variables (LC_ALL, LC_CTYPE, LANG: the first that is set) say so. `variable` returns
/// null for one that is not set.
TerminalStyle terminal_style(
    const std::function<const char*(const char* name)>& variable = &std::getenv);

/// Returns the last `width` of `values` as bars one character wide, from the least to the greatest.
std::string sparkline(const std::vector<double>& values, std::size_t width, bool utf8);

/// Returns a number with commas: "12,345".
std::string with_thousands(std::int64_t number);

/// The epochs of a run as lines of one table, as a terminal shows them. What matters most is on the
/// left: a narrow terminal shows fewer columns, each of them whole.
class EpochTable {
 public:
  EpochTable(std::int64_t epochs, TerminalStyle style) : epochs_(epochs), style_(style) {}

  /// Returns the head of the table for a terminal of that many columns.
  std::string head(bool with_validation, std::size_t columns) const;
  /// Returns the line of this epoch, whose test accuracy is coloured if it is the best so far. The
  /// last column is a sparkline of the test accuracy so far.
  std::string line(const EpochRecord& record, std::size_t columns);

 private:
  std::int64_t epochs_;
  TerminalStyle style_;
  std::vector<double> accuracies_;  // of the last epochs
  double best_score_ = -1;          // by which the best checkpoint is chosen, so far
};

}  // namespace mnist_train::report
