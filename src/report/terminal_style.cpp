#include "report/terminal_style.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdlib>

namespace mnist_train::report {

namespace {

std::string locale(const Variable& variable) {
  for (const char* name : {"LC_ALL", "LC_CTYPE", "LANG"}) {
    const auto value = variable(name);
    if (value && !value->empty()) return *value;
  }
  return "";
}

}  // namespace

TerminalStyle terminal_style(const Variable& variable) {
  std::string charset = locale(variable);
  std::transform(charset.begin(), charset.end(), charset.begin(), [](unsigned char letter) {
    return static_cast<char>(letter >= 'A' && letter <= 'Z' ? letter - 'A' + 'a' : letter);
  });
  TerminalStyle style;
  style.utf8 = charset.ends_with("utf-8") || charset.ends_with("utf8");
  style.colours =
      variable("NO_COLOR").value_or("").empty() && variable("TERM").value_or("") != "dumb";
  return style;
}

TerminalStyle terminal_style() {
  return terminal_style([](const char* name) -> std::optional<std::string> {
    const char* value = std::getenv(name);
    return value == nullptr ? std::nullopt : std::optional<std::string>(value);
  });
}

std::string sparkline(const std::vector<double>& values, std::size_t width, bool utf8) {
  constexpr std::array<const char*, 8> kBlocks{"▁", "▂", "▃", "▄", "▅", "▆", "▇", "█"};
  constexpr std::array<const char*, 8> kPlain{"_", ".", ",", "-", "=", "+", "*", "#"};
  const auto& bars = utf8 ? kBlocks : kPlain;
  const std::size_t count = std::min(width, values.size());
  const auto first = values.end() - static_cast<std::ptrdiff_t>(count);
  if (count == 0) return "";
  const auto [least, greatest] = std::minmax_element(first, values.end());
  std::string line;
  for (auto value = first; value != values.end(); ++value) {
    const double share = *greatest > *least ? (*value - *least) / (*greatest - *least) : 0.5;
    line += std::isfinite(share) ? bars[static_cast<std::size_t>(std::lround(share * 7))] : " ";
  }
  return line;
}

}  // namespace mnist_train::report
