#include "report/epoch_table.h"

#include <spdlog/fmt/fmt.h>

#include <algorithm>

#include "report/console.h"

namespace mnist_train::report {

namespace {

constexpr const char* kDim = "2";
constexpr const char* kBestColour = "1;32";
constexpr const char* kBarColour = "36";
constexpr std::size_t kMostBars = 20;

std::string percent_column(double share) { return fmt::format("{:>8.2f} %", 100 * share); }

}  // namespace

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
  const std::size_t room = columns > used ? columns - used : 0;
  const std::string bars = sparkline(accuracies_, std::min(room, kMostBars), style_.utf8);
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
