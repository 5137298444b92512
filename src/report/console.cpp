#include "report/console.h"

#include <spdlog/spdlog.h>
#include <sys/ioctl.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "base/file.h"
#include "base/system.h"

namespace mnist_train::report {

namespace {

constexpr double kRedrawInterval_s = 0.1;
constexpr int kBarWidth = 30;
constexpr std::size_t kMostBars = 20;  // of a sparkline
constexpr const char* kDim = "2";
constexpr const char* kBestColour = "1;32";
constexpr const char* kBarColour = "36";

std::string percent_column(double fraction) { return fmt::format("{:>8.2f} %", 100 * fraction); }

std::string samples_a_second(double rate) {
  return with_thousands(static_cast<std::int64_t>(rate)) + " samples/s";
}

std::string coloured(const TerminalStyle& style, const char* code, const std::string& text) {
  return style.colours && !text.empty() ? fmt::format("\x1b[{}m{}\x1b[0m", code, text) : text;
}

std::string table_head(bool with_validation) {
  return fmt::format("{:>7}{:>12}{:>10}{:>11}{:>10}{}{:>10}{:>11}", "epoch", "train loss",
                     "accuracy", "test loss", "accuracy", with_validation ? "  held out" : "",
                     "time", "samples/s");
}

class Console : public Sink {
 public:
  explicit Console(const ConsoleSetup& setup) : setup_(setup), table_(setup.epochs, setup.style) {}

  void tick(std::int64_t epoch, std::int64_t step_in_epoch) override {
    step_in_epoch_ = step_in_epoch;
    if (setup_.quiet || !setup_.is_terminal) return;
    const double now_s = monotonic_seconds();
    if (now_s - drawn_s_ < kRedrawInterval_s) return;
    drawn_s_ = now_s;
    draw_bar(epoch);
  }

  void step(const StepRecord& record) override {
    loss_text_ =
        fmt::format("loss {:.4f}  {}", record.loss, samples_a_second(record.samples_per_second));
    if (setup_.quiet || setup_.is_terminal) return;
    spdlog::info("epoch {}/{}, step {}/{}: {}", record.epoch, setup_.epochs, step_in_epoch_,
                 setup_.steps_per_epoch, loss_text_);
  }

  void epoch(const EpochResult& result) override {
    if (setup_.quiet) return;
    if (std::exchange(bar_is_drawn_, false)) write("\x1b[K");
    const EpochRecord& record = result.record;
    const auto both = [](double loss, double accuracy) {
      return fmt::format("loss {:.4f}, accuracy {:.2f} %", loss, 100 * accuracy);
    };
    std::string validation;
    if (record.validation_accuracy) {
      validation =
          "validation " + both(*record.validation_loss, *record.validation_accuracy) + "; ";
    }
    // A terminal shows the table; the log has the line all the same.
    spdlog::log(setup_.is_terminal ? spdlog::level::debug : spdlog::level::info,
                "epoch {}/{}: train {}; {}test {}; {:.2f} s, {}", record.epoch, setup_.epochs,
                both(record.train_loss, record.train_accuracy), validation,
                both(record.test_loss, record.test_accuracy),
                record.train_seconds + record.test_seconds,
                samples_a_second(record.samples_per_second));
    if (setup_.is_terminal) write(table_.lines(record, columns()));
  }

 private:
  std::size_t columns() const {
    winsize size{};
    return ::ioctl(setup_.fd, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : 80;
  }

  void write(const std::string& text) const {
    (void)write_all(setup_.fd, text.data(), text.size());
  }

  void draw_bar(std::int64_t epoch) {
    const std::int64_t steps = std::max<std::int64_t>(1, setup_.steps_per_epoch);
    const auto filled =
        static_cast<std::size_t>(kBarWidth * std::min(step_in_epoch_, steps) / steps);
    std::string bar(filled, '=');
    if (filled < kBarWidth) bar += '>';
    bar.resize(kBarWidth, ' ');
    std::string line = fmt::format("epoch {}/{} [{}] {}/{}  {}", epoch, setup_.epochs, bar,
                                   step_in_epoch_, steps, loss_text_);
    line.resize(std::min(line.size(), columns() - 1));
    // The cursor stays at the line's start: whatever is written next takes the bar's place.
    write("\x1b[K" + line + "\r");
    bar_is_drawn_ = true;
  }

  ConsoleSetup setup_;
  EpochTable table_;
  std::int64_t step_in_epoch_ = 0;
  std::string loss_text_;
  double drawn_s_ = 0;
  bool bar_is_drawn_ = false;
};

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
  style.colours = value_of("NO_COLOR").empty() && value_of("TERM") != "dumb";
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

std::string EpochTable::lines(const EpochRecord& record, std::size_t columns) {
  const bool best = std::all_of(accuracies_.begin(), accuracies_.end(),
                                [&](double earlier) { return record.test_accuracy > earlier; });
  std::string head;
  if (accuracies_.empty()) {
    head = coloured(style_, kDim, table_head(record.validation_accuracy.has_value())) + "\n";
  }
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
  return head + before + (best ? coloured(style_, kBestColour, accuracy) : accuracy) + after +
         "  " + coloured(style_, kBarColour, bars) + "\n";
}

std::unique_ptr<Sink> console_sink(const ConsoleSetup& setup) {
  return std::make_unique<Console>(setup);
}

}  // namespace mnist_train::report
