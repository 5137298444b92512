#include "report/terminal.h"

#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdlib>

namespace mnist_train::report {

namespace {

constexpr const char* kDim = "2";
constexpr const char* kBestColour = "1;32";
constexpr const char* kBarColour = "36";
constexpr std::size_t kMostBars = 20;

std::string percent_column(double fraction) { return fmt::format("{:>8.2f} %", 100 * fraction); }

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

std::string EpochTable::lines(const EpochRecord& record, std::size_t columns) {
  const bool best = std::all_of(accuracies_.begin(), accuracies_.end(),
                                [&](double earlier) { return record.test_accuracy > earlier; });
  const std::string text =
      accuracies_.empty() ? head(record.validation_accuracy.has_value()) : std::string();
  accuracies_.push_back(record.test_accuracy);
  const std::string epoch = fmt::format("{}/{}", record.epoch, epochs_);
  std::string before = fmt::format("{:>7}{:>12.4f}{}{:>11.4f}", epoch, record.train_loss,
                                   percent_column(record.train_accuracy), record.test_loss);
  const std::string accuracy = percent_column(record.test_accuracy);
  std::string after;
  if (record.validation_accuracy) after += percent_column(*record.validation_accuracy);
  after += fmt::format("{:>8.2f} s{:>11}", record.train_seconds + record.test_seconds,
                       with_thousands(static_cast<std::int64_t>(record.samples_per_second)));
  const std::size_t used = before.size() + accuracy.size() + after.size() + 3;
  const std::size_t left = columns > used ? columns - used : 0;
  const std::string bars = sparkline(accuracies_, std::min(left, kMostBars), style_.utf8);
  return text + before + (best ? coloured(kBestColour, accuracy) : accuracy) + after + "  " +
         coloured(kBarColour, bars) + "\n";
}

std::string EpochTable::coloured(const char* code, const std::string& text) const {
  return style_.colours && !text.empty() ? fmt::format("\x1b[{}m{}\x1b[0m", code, text) : text;
}

std::string EpochTable::head(bool with_validation) const {
  std::string text = fmt::format("{:>7}{:>12}{:>10}{:>11}{:>10}", "epoch", "train loss", "accuracy",
                                 "test loss", "accuracy");
  if (with_validation) text += fmt::format("{:>10}", "held out");
  text += fmt::format("{:>10}{:>11}", "time", "samples/s");
  return coloured(kDim, text) + "\n";
}

}  // namespace mnist_train::report
