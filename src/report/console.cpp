#include "report/console.h"

#include <spdlog/spdlog.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <utility>
#include <vector>

#include "base/file.h"
#include "base/print.h"
#include "base/system.h"

namespace mnist_train::report {

namespace {

constexpr double kRedrawInterval_s = 0.1;
constexpr std::size_t kBarWidth = 30;
constexpr std::size_t kLeastBarWidth = 10;

std::string rate_text(double samples_per_second) {
  return with_thousands(static_cast<std::int64_t>(samples_per_second)) + " samples/s";
}

/// A part of the line of progress; those of a high number are the first to go.
struct Part {
  int number;
  std::string text;
};

std::string joined(const std::vector<Part>& parts) {
  std::string line;
  for (const Part& part : parts) line += (line.empty() ? "" : "  ") + part.text;
  return line;
}

/// Returns the parts that fit into so many columns, in their order.
std::string fitted(std::vector<Part> parts, std::size_t columns) {
  std::erase_if(parts, [](const Part& part) { return part.text.empty(); });
  while (parts.size() > 1 && joined(parts).size() > columns) {
    parts.erase(std::max_element(parts.begin(), parts.end(),
                                 [](const Part& a, const Part& b) { return a.number < b.number; }));
  }
  return joined(parts).substr(0, columns);
}

/// Returns a bar for a line of which `columns` are free, or nothing where that is too few.
std::string progress_bar(double fraction, std::size_t columns) {
  constexpr std::size_t kFrame = 4;  // "  [" and "]"
  if (columns < kFrame + kLeastBarWidth) return "";
  const std::size_t width = std::min(columns - kFrame, kBarWidth);
  std::string bar(static_cast<std::size_t>(static_cast<double>(width) * fraction), '=');
  if (bar.size() < width) bar += '>';
  bar.resize(width, ' ');
  return "  [" + bar + "]";
}

class Console : public Sink {
 public:
  explicit Console(const ConsoleSetup& setup) : setup_(setup), table_(setup.epochs, setup.style) {}

  void begin(const RunStart& start, const Summary& /*summary*/) override {
    if (setup_.quiet || !setup_.is_terminal || setup_.has_head) return;
    write(table_.head(start.validation_images > 0, columns()));
  }

  void tick(const StepPosition& position) override {
    position_ = position;
    if (setup_.quiet || !setup_.is_terminal) return;
    const double now_s = monotonic_seconds();
    if (now_s - drawn_s_ < kRedrawInterval_s) return;
    drawn_s_ = now_s;
    draw_progress();
  }

  void pace(const Pace& pace) override {
    pace_ = pace;
    constexpr double kWeight = 0.2;  // of the last second in the time that is left
    step_s_ =
        step_s_ > 0 ? (1 - kWeight) * step_s_ + kWeight * pace.step_seconds : pace.step_seconds;
  }

  void step(const StepRecord& record) override {
    if (setup_.quiet || setup_.is_terminal) return;
    const std::string left = time_left();
    spdlog::info("epoch {}/{}, step {}/{}: loss {:.4f}, {}{}", record.epoch, setup_.epochs,
                 position_.step_in_epoch, setup_.steps_per_epoch, record.loss,
                 rate_text(record.samples_per_second), left.empty() ? "" : ", " + left);
  }

  void epoch(const EpochResult& result) override {
    const EpochRecord& record = result.record;
    test_s_ = record.test_seconds;
    if (setup_.quiet || result.is_repeated) return;
    erase_progress();
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
                record.train_seconds + record.test_seconds, rate_text(record.samples_per_second));
    if (setup_.is_terminal) write(table_.line(record, columns()));
  }

  void end(const Summary& summary) override {
    erase_progress();
    // Ctrl-C has left its "^C" on a terminal that cannot erase it.
    const bool has_echo = summary.status == "stopped" && !setup_.is_terminal;
    if (has_echo && !setup_.quiet && ::isatty(setup_.fd) == 1) write("\n");
  }

 private:
  std::size_t columns() const {
    winsize size{};
    return ::ioctl(setup_.fd, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : 80;
  }

  void write(const std::string& text) const {
    (void)write_all(setup_.fd, text.data(), text.size());
  }

  void erase_progress() {
    if (std::exchange(progress_is_drawn_, false)) write(kEraseLine);
  }

  /// Returns "ETA 1:05" where the speed is known.
  std::string time_left() const {
    if (step_s_ <= 0) return "";
    const std::int64_t in_epoch = std::max<std::int64_t>(1, setup_.steps_per_epoch);
    std::int64_t steps = (setup_.epochs - position_.epoch + 1) * in_epoch - position_.step_in_epoch;
    if (setup_.max_steps) steps = std::min(steps, *setup_.max_steps - position_.step);
    steps = std::max<std::int64_t>(0, steps);
    const std::int64_t tests = (steps + in_epoch - 1) / in_epoch;
    return "ETA " +
           clock_text(static_cast<double>(steps) * step_s_ + static_cast<double>(tests) * test_s_);
  }

  void draw_progress() {
    std::int64_t steps = std::max<std::int64_t>(1, setup_.steps_per_epoch);
    if (setup_.max_steps) {
      steps = std::min(steps, position_.step_in_epoch + *setup_.max_steps - position_.step);
    }
    const std::size_t free = columns() - 1;
    std::string line = fitted({{0, fmt::format("epoch {}/{}", position_.epoch, setup_.epochs)},
                               {3, fmt::format("{}/{}", position_.step_in_epoch, steps)},
                               {1, pace_ ? fmt::format("loss {:.4f}", pace_->loss) : ""},
                               {4, pace_ ? rate_text(pace_->samples_per_second) : ""},
                               {2, time_left()}},
                              free);
    const double fraction =
        static_cast<double>(std::min(position_.step_in_epoch, steps)) / static_cast<double>(steps);
    line += progress_bar(fraction, free - line.size());
    // The cursor stays at the line's start: whatever is written next takes its place.
    write(kEraseLine + line + "\r");
    progress_is_drawn_ = true;
  }

  ConsoleSetup setup_;
  EpochTable table_;
  StepPosition position_;
  std::optional<Pace> pace_;
  double step_s_ = 0;  // that a step takes, smoothed; 0: not known yet
  double test_s_ = 0;  // that the last evaluation took
  double drawn_s_ = 0;
  bool progress_is_drawn_ = false;
};

}  // namespace

std::string clock_text(double seconds) {
  const auto whole = static_cast<std::int64_t>(std::llround(std::clamp(seconds, 0.0, 1e9)));
  const std::string rest = fmt::format("{:02}", whole % 60);
  if (whole < 3600) return fmt::format("{}:{}", whole / 60, rest);
  return fmt::format("{}:{:02}:{}", whole / 3600, whole / 60 % 60, rest);
}

std::unique_ptr<Sink> console_sink(const ConsoleSetup& setup) {
  return std::make_unique<Console>(setup);
}

}  // namespace mnist_train::report
