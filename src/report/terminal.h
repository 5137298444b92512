#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "report/records.h"

namespace mnist_train::report {

/// What a terminal shows beside plain text.
struct TerminalStyle {
  bool colours = false;
  bool utf8 = false;
};

using Variable = std::function<std::optional<std::string>(const char* name)>;

/// Returns the style that environment variables ask for: no colours where NO_COLOR is set and not
/// empty (no-color.org) or TERM is "dumb"; UTF-8 where the locale's variables (LC_ALL, LC_CTYPE,
/// LANG: the first that is set) say so.
TerminalStyle terminal_style(const Variable& variable);
/// Returns the style that this process's environment asks for.
TerminalStyle terminal_style();

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
  std::string coloured(const char* code, const std::string& text) const;
  std::string head(bool with_validation) const;

  std::int64_t epochs_;
  TerminalStyle style_;
  std::vector<double> accuracies_;
};

}  // namespace mnist_train::report
