#include "report/console.h"

#include <fcntl.h>

#include <filesystem>
#include <map>
#include <memory>
#include <string>

#include "base/file.h"
#include "base/log.h"
#include "support/catch.h"
#include "support/temp_folder.h"

namespace mnist_train::report {
namespace {

namespace fs = std::filesystem;
using Catch::Matchers::ContainsSubstring;

constexpr StepRecord kStep{2, 150, 0.25, 0.01, 12345.5};
const EpochResult kEpoch{.record = {2, 200, 0.5, 0.875, 0.25, 0.9375, 3.5, 0.5, 17142.0, {}, {}}};

/// A console whose output, with what is logged meanwhile, goes to a file.
class Screen {
 public:
  explicit Screen(bool terminal, bool quiet = false) : before_(spdlog::default_logger()) {
    LogSetup log;
    log.console_fd = fd_.get();
    set_up_logging(log);
    ConsoleSetup setup;
    setup.quiet = quiet;
    setup.is_terminal = terminal;
    setup.fd = fd_.get();
    setup.epochs = 10;
    setup.steps_per_epoch = 100;
    console = console_sink(setup);
  }
  Screen(const Screen&) = delete;
  Screen& operator=(const Screen&) = delete;
  ~Screen() { spdlog::set_default_logger(before_); }

  std::string text() const { return read_file(path_, 1 << 20, ExitCode::kData); }

  std::unique_ptr<Sink> console;

 private:
  testing::TempFolder folder_;
  fs::path path_ = folder_.path() / "screen";
  UniqueFd fd_{::open(path_.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600)};
  std::shared_ptr<spdlog::logger> before_;
};

TEST_CASE("without a terminal progress is plain lines") {
  Screen screen(/*terminal=*/false);
  screen.console->tick(2, 50);
  screen.console->step(kStep);
  screen.console->epoch(kEpoch);
  CHECK(screen.text() ==
        "epoch 2/10, step 50/100: loss 0.2500  12,345 samples/s\n"
        "epoch 2/10: train loss 0.5000, accuracy 87.50 %; test loss 0.2500, accuracy 93.75 %; "
        "4.00 s, 17,142 samples/s\n");
}

TEST_CASE("on a terminal a bar is drawn in place, and gives way to the epoch's line") {
  Screen screen(/*terminal=*/true);
  screen.console->step(kStep);
  screen.console->tick(2, 50);
  const std::string bar = screen.text();
  CHECK_THAT(bar, ContainsSubstring("epoch 2/10 [===============>              ] 50/100"));
  CHECK_THAT(bar, ContainsSubstring("loss 0.2500"));
  CHECK(bar.ends_with('\r'));
  CHECK_THAT(bar, !ContainsSubstring("\n"));
  screen.console->epoch(kEpoch);
  CHECK_THAT(screen.text(), ContainsSubstring("\r\x1b[K"));
  CHECK_THAT(screen.text(),
             ContainsSubstring("   2/10      0.5000   87.50 %     0.2500   93.75 %"));
  CHECK_THAT(screen.text(), !ContainsSubstring("train loss 0.5"));
}

TEST_CASE("a bar never leaves its frame, and is redrawn at most ten times a second") {
  Screen full(/*terminal=*/true);
  full.console->tick(1, 250);
  CHECK_THAT(full.text(), ContainsSubstring("[==============================] 250/100"));
  Screen busy(/*terminal=*/true);
  for (int step = 0; step < 1000; ++step) busy.console->tick(1, 1);
  const std::string once = busy.text();
  CHECK(std::count(once.begin(), once.end(), '\r') <= 2);
}

TEST_CASE("a quiet console says nothing") {
  for (const bool terminal : {false, true}) {
    Screen screen(terminal, /*quiet=*/true);
    screen.console->tick(1, 1);
    screen.console->step(kStep);
    screen.console->epoch(kEpoch);
    CHECK(screen.text().empty());
  }
}

using Variables = std::map<std::string, std::string>;

TerminalStyle style_of(const Variables& variables) {
  return terminal_style([&](const char* name) {
    const auto found = variables.find(name);
    return found == variables.end() ? nullptr : found->second.c_str();
  });
}

TEST_CASE("colours and characters follow the environment") {
  CHECK(style_of({}).colours);
  CHECK(style_of({{"NO_COLOR", ""}}).colours);
  CHECK_FALSE(style_of({{"NO_COLOR", "1"}}).colours);
  CHECK_FALSE(style_of({{"TERM", "dumb"}}).colours);
  CHECK_FALSE(style_of({}).utf8);
  CHECK(style_of({{"LANG", "de_DE.UTF-8"}}).utf8);
  CHECK(style_of({{"LC_CTYPE", "C.utf8"}, {"LANG", "C"}}).utf8);
  CHECK_FALSE(style_of({{"LC_ALL", "C"}, {"LANG", "de_DE.UTF-8"}}).utf8);
  CHECK(style_of({{"LC_ALL", ""}, {"LANG", "de_DE.UTF-8"}}).utf8);
}

TEST_CASE("a sparkline runs from the least to the greatest, and shows the last") {
  CHECK(sparkline({0, 0.5, 1}, 10, /*utf8=*/true) == "▁▅█");
  CHECK(sparkline({5, 0, 0.5, 1}, 3, /*utf8=*/true) == "▁▅█");
  CHECK(sparkline({0, 0.5, 1}, 10, /*utf8=*/false) == "_=#");
  CHECK(sparkline({3, 3}, 10, /*utf8=*/false) == "==");
  CHECK(sparkline({}, 10, true).empty());
  CHECK(sparkline({1, 2}, 0, true).empty());
}

EpochRecord epoch(std::int64_t number, double accuracy) {
  EpochRecord record;
  record.epoch = number;
  record.train_loss = 0.5;
  record.train_accuracy = 0.875;
  record.test_loss = 0.25;
  record.test_accuracy = accuracy;
  record.train_seconds = 3.5;
  record.test_seconds = 0.5;
  record.samples_per_second = 17142;
  return record;
}

TEST_CASE("epochs are lines of one table") {
  EpochTable table(10, {false, true});
  CHECK(table.lines(epoch(1, 0.5), 100) ==
        "  epoch  train loss  accuracy  test loss  accuracy      time  samples/s\n"
        "   1/10      0.5000   87.50 %     0.2500   50.00 %    4.00 s     17,142  ▅\n");
  CHECK(table.lines(epoch(2, 0.75), 100) ==
        "   2/10      0.5000   87.50 %     0.2500   75.00 %    4.00 s     17,142  ▁█\n");
  CHECK(table.lines(epoch(3, 0.625), 75) ==
        "   3/10      0.5000   87.50 %     0.2500   62.50 %    4.00 s     17,142  ▅\n");
  CHECK(table.lines(epoch(4, 0.625), 40).ends_with("17,142  \n"));
}

TEST_CASE("on a terminal with colours the best accuracy so far stands out") {
  EpochTable table(2, {true, true});
  const std::string first = table.lines(epoch(1, 0.75), 100);
  CHECK(first.find("\x1b[1;32m   75.00 %\x1b[0m") != std::string::npos);
  const std::string second = table.lines(epoch(2, 0.5), 100);
  CHECK(second.find("\x1b[1;32m") == std::string::npos);
}

TEST_CASE("a validation set has a column of its own") {
  EpochTable table(2, {false, false});
  EpochRecord record = epoch(1, 0.75);
  record.validation_loss = 0.5;
  record.validation_accuracy = 0.8125;
  const std::string lines = table.lines(record, 100);
  CHECK(lines.find("  held out ") != std::string::npos);
  CHECK(lines.find("75.00 %   81.25 %") != std::string::npos);
}

TEST_CASE("numbers are grouped by thousands") {
  struct Case {
    std::int64_t number;
    const char* text;
  };
  for (const Case& known :
       {Case{0, "0"}, Case{999, "999"}, Case{1000, "1,000"}, Case{60000, "60,000"},
        Case{1234567, "1,234,567"}, Case{-999, "-999"}, Case{-1000, "-1,000"},
        Case{-123456, "-123,456"}, Case{INT64_MIN, "-9,223,372,036,854,775,808"}}) {
    CHECK(with_thousands(known.number) == known.text);
  }
}

}  // namespace
}  // namespace mnist_train::report
