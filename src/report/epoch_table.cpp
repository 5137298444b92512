#include "report/epoch_table.h"

#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <array>
#include <cmath>

namespace mnist_train::report {

namespace {

constexpr std::size_t kMostBars = 20;  // of a sparkline
constexpr const char* kDim = "2";
constexpr const char* kBestColour = "1;32";
constexpr const char* kBarColour = "36";

std::string as_percent(double fraction) { return fmt::format("{:.2f} %", 100 * fraction); }

std::string coloured(const TerminalStyle& style, const char* code, const std::string& text) {
  return style.colours && !text.empty() ? fmt::format("\x1b[{}m{}\x1b[0m", code, text) : text;
}

/// A column of the table of epochs.
struct Column {
  const char* title;
  std::size_t width;
  bool needs_validation = false;
};

constexpr std::array kColumns{Column{"epoch", 7},       Column{"test loss", 11},
                              Column{"accuracy", 10},   Column{"held out", 10, true},
                              Column{"train loss", 12}, Column{"accuracy", 10},
                              Column{"time", 10},       Column{"samples/s", 11}};
constexpr std::size_t kAccuracyColumn = 2;
using Cells = std::array<std::string, kColumns.size()>;

/// Returns how many of the columns fit, and into `used` the width that they take. The last cell of
/// a line stays free: some terminals begin a new one when it is filled.
std::size_t columns_that_fit(bool with_validation, std::size_t columns, std::size_t& used) {
  used = 0;
  for (std::size_t i = 0; i < kColumns.size(); ++i) {
    if (kColumns[i].needs_validation && !with_validation) continue;
    if (used + kColumns[i].width >= columns) return i;
    used += kColumns[i].width;
  }
  return kColumns.size();
}

}  // namespace

TerminalStyle terminal_style(const std::function<const char*(const char* name)>& variable) {
  const auto value_of = [&](const char* name) {
    const char* value = variable(name);
    return std::string(value == nullptr ? "" : value);
  };
  std::string charset;
  for (const char* name : {"LC_ALL", "LC_CTYPE", "LANG"}) {
    if (charset.empty()) charset = value_of(name);
  }
  std::transform(charset.begin(), charset.end(), charset.begin(), [](unsigned char letter) {
    return static_cast<char>(letter >= 'A' && letter <= 'Z' ? letter - 'A' + 'a' : letter);
  });
  TerminalStyle style;
  style.utf8 = charset.ends_with("utf-8") || charset.ends_with("utf8");
  style.redraws = value_of("TERM") != "dumb";
  style.colours = style.redraws && value_of("NO_COLOR").empty();
  return style;
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
    const double fraction = *greatest > *least ? (*value - *least) / (*greatest - *least) : 0.5;
    line +=
        std::isfinite(fraction) ? bars[static_cast<std::size_t>(std::lround(fraction * 7))] : " ";
  }
  return line;
}

std::string with_thousands(std::int64_t number) {
  std::string digits = std::to_string(number);
  const std::size_t first = digits.starts_with('-') ? 1 : 0;
  for (std::size_t i = digits.size(); i > first + 3; i -= 3) digits.insert(i - 3, ",");
  return digits;
}

std::string EpochTable::head(bool with_validation, std::size_t columns) const {
  std::size_t used = 0;
  const std::size_t count = columns_that_fit(with_validation, columns, used);
  std::string head;
  for (std::size_t i = 0; i < count; ++i) {
    if (kColumns[i].needs_validation && !with_validation) continue;
    head += fmt::format("{:>{}}", kColumns[i].title, kColumns[i].width);
  }
  return coloured(style_, kDim, head) + "\n";
}

std::string EpochTable::line(const EpochRecord& record, std::size_t columns) {
  const double score = record.validation_accuracy.value_or(record.test_accuracy);
  const bool best = score > best_score_;
  if (best) best_score_ = score;
  accuracies_.push_back(record.test_accuracy);
  if (accuracies_.size() > kMostBars) accuracies_.erase(accuracies_.begin());
  const Cells cells{fmt::format("{}/{}", record.epoch, epochs_),
                    fmt::format("{:.4f}", record.test_loss),
                    as_percent(record.test_accuracy),
                    as_percent(record.validation_accuracy.value_or(0)),
                    fmt::format("{:.4f}", record.train_loss),
                    as_percent(record.train_accuracy),
                    fmt::format("{:.2f} s", record.train_seconds + record.test_seconds),
                    with_thousands(static_cast<std::int64_t>(record.samples_per_second))};
  const bool with_validation = record.validation_accuracy.has_value();
  std::size_t used = 0;
  const std::size_t count = columns_that_fit(with_validation, columns, used);
  std::string line;
  for (std::size_t i = 0; i < count; ++i) {
    if (kColumns[i].needs_validation && !with_validation) continue;
    const std::string cell = fmt::format("{:>{}}", cells[i], kColumns[i].width);
    line += best && i == kAccuracyColumn ? coloured(style_, kBestColour, cell) : cell;
  }
  constexpr std::size_t kGap = 3;  // two before the bars and one behind them
  const std::size_t left = columns > used + kGap ? columns - used - kGap : 0;
  if (count < kColumns.size() || left == 0) return line + "\n";
  const std::string bars = sparkline(accuracies_, std::min(left, kMostBars), style_.utf8);
  return line + "  " + coloured(style_, kBarColour, bars) + "\n";
}

}  // namespace mnist_train::report
