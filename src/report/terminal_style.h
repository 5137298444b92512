#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace mnist_train::report {

/// What a terminal may be sent beside plain text.
struct TerminalStyle {
  bool colours = false;
  bool utf8 = false;
};

using Variable = std::function<std::optional<std::string>(const char* name)>;

/// No colours where NO_COLOR is set and not empty (no-color.org) or TERM is "dumb"; UTF-8 where the
/// locale's variables (LC_ALL, LC_CTYPE, LANG: the first that is set) say so.
TerminalStyle terminal_style(const Variable& variable);
/// By this process's environment.
TerminalStyle terminal_style();

/// The last `width` of `values` as bars one character wide, from the least to the greatest of them.
std::string sparkline(const std::vector<double>& values, std::size_t width, bool utf8);

}  // namespace mnist_train::report
