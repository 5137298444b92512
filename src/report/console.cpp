#include "report/console.h"

#include <spdlog/spdlog.h>
#include <sys/ioctl.h>

#include <algorithm>

#include "base/file.h"
#include "base/system.h"

namespace mnist_train::report {

namespace {

constexpr double kRedrawInterval_s = 0.1;
constexpr int kBarWidth = 30;

int terminal_columns(int fd) {
  winsize size{};
  return ::ioctl(fd, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : 80;
}

std::string samples_a_second(double rate) {
  return with_thousands(static_cast<std::int64_t>(rate)) + " samples/s";
}

}  // namespace

void Console::tick(std::int64_t epoch, std::int64_t step_in_epoch) {
  step_in_epoch_ = step_in_epoch;
  if (setup_.quiet || !setup_.is_terminal) return;
  const double now_s = monotonic_seconds();
  if (now_s - drawn_s_ < kRedrawInterval_s) return;
  drawn_s_ = now_s;
  draw_bar(epoch);
}

void Console::step(const StepRecord& record) {
  loss_text_ =
      fmt::format("loss {:.4f}  {}", record.loss, samples_a_second(record.samples_per_second));
  if (setup_.quiet || setup_.is_terminal) return;
  spdlog::info("epoch {}/{}, step {}/{}: {}", record.epoch, setup_.epochs, step_in_epoch_,
               setup_.steps_per_epoch, loss_text_);
}

void Console::epoch(const EpochResult& result) {
  if (setup_.quiet) return;
  clear_bar();
  const EpochRecord& record = result.record;
  const auto both = [](double loss, double accuracy) {
    return fmt::format("loss {:.4f}, accuracy {:.2f} %", loss, 100 * accuracy);
  };
  std::string validation;
  if (record.validation_accuracy) {
    validation = "validation " + both(*record.validation_loss, *record.validation_accuracy) + "; ";
  }
  // A terminal shows the table; the log has the line all the same.
  spdlog::log(setup_.is_terminal ? spdlog::level::debug : spdlog::level::info,
              "epoch {}/{}: train {}; {}test {}; {:.2f} s, {}", record.epoch, setup_.epochs,
              both(record.train_loss, record.train_accuracy), validation,
              both(record.test_loss, record.test_accuracy),
              record.train_seconds + record.test_seconds,
              samples_a_second(record.samples_per_second));
  if (!setup_.is_terminal) return;
  const std::string lines =
      table_.lines(record, static_cast<std::size_t>(terminal_columns(setup_.fd)));
  (void)write_all(setup_.fd, lines.data(), lines.size());
}

void Console::draw_bar(std::int64_t epoch) {
  const std::int64_t steps = std::max<std::int64_t>(1, setup_.steps_per_epoch);
  const auto filled = static_cast<std::size_t>(kBarWidth * std::min(step_in_epoch_, steps) / steps);
  std::string bar(filled, '=');
  if (filled < kBarWidth) bar += '>';
  bar.resize(kBarWidth, ' ');
  std::string line = fmt::format("epoch {}/{} [{}] {}/{}  {}", epoch, setup_.epochs, bar,
                                 step_in_epoch_, steps, loss_text_);
  line.resize(std::min(line.size(), static_cast<std::size_t>(terminal_columns(setup_.fd) - 1)));
  // The cursor stays at the line's start: whatever is written next takes the bar's place.
  line = "\x1b[K" + line + "\r";
  (void)write_all(setup_.fd, line.data(), line.size());
  bar_is_drawn_ = true;
}

void Console::clear_bar() {
  if (!bar_is_drawn_) return;
  constexpr std::string_view kClear = "\x1b[K";
  (void)write_all(setup_.fd, kClear.data(), kClear.size());
  bar_is_drawn_ = false;
}

}  // namespace mnist_train::report
