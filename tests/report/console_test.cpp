#include "report/console.h"

#include <fcntl.h>

#include <filesystem>
#include <memory>
#include <optional>
#include <string>

#include "base/file.h"
#include "base/log.h"
#include "support/catch.h"
#include "support/temp_folder.h"

namespace mnist_train::report {
namespace {

namespace fs = std::filesystem;
using Catch::Matchers::ContainsSubstring;

constexpr Pace kPace{0.125, 2048, 0.5};
constexpr StepRecord kStep{2, 150, 0.25, 0.01, 12345.5};
const EpochResult kEpoch{.record = {2, 200, 0.5, 0.875, 0.25, 0.9375, 3.5, 0.5, 17142.0, {}, {}}};

/// A console whose output, with what is logged meanwhile, goes to a file.
class Screen {
 public:
  explicit Screen(bool terminal, bool quiet = false,
                  std::optional<std::int64_t> max_steps = std::nullopt, bool has_head = false)
      : before_(spdlog::default_logger()) {
    LogSetup log;
    log.console_fd = fd_.get();
    set_up_logging(log);
    ConsoleSetup setup;
    setup.quiet = quiet;
    setup.is_terminal = terminal;
    setup.fd = fd_.get();
    setup.epochs = 10;
    setup.steps_per_epoch = 100;
    setup.max_steps = max_steps;
    setup.has_head = has_head;
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
  screen.console->tick({2, 50, 150});
  screen.console->step(kStep);
  screen.console->pace(kPace);
  screen.console->step(kStep);
  screen.console->epoch(kEpoch);
  CHECK(screen.text() ==
        "epoch 2/10, step 50/100: loss 0.2500, 12,345 samples/s\n"
        "epoch 2/10, step 50/100: loss 0.2500, 12,345 samples/s, ETA 7:05\n"
        "epoch 2/10: train loss 0.5000, accuracy 87.50 %; test loss 0.2500, accuracy 93.75 %; "
        "4.00 s, 17,142 samples/s\n");
}

TEST_CASE("on a terminal numbers and a bar are drawn in place, and give way to the epoch's line") {
  Screen screen(/*terminal=*/true);
  screen.console->pace(kPace);
  screen.console->tick({2, 50, 150});
  const std::string drawn = screen.text();
  CHECK_THAT(drawn, ContainsSubstring(
                        "epoch 2/10  50/100  loss 0.1250  2,048 samples/s  ETA 7:05  [======="));
  CHECK(drawn.ends_with("]\r"));
  CHECK_THAT(drawn, !ContainsSubstring("\n"));
  screen.console->epoch(kEpoch);
  CHECK_THAT(screen.text(), ContainsSubstring("]\r\r\x1b[J"));
  CHECK_THAT(screen.text(),
             ContainsSubstring("   2/10     0.2500   93.75 %      0.5000   87.50 %"));
  CHECK_THAT(screen.text(), !ContainsSubstring("train loss 0.5"));
}

TEST_CASE("before the speed is known there are only the step and the bar") {
  Screen screen(/*terminal=*/true);
  screen.console->tick({1, 50, 50});
  CHECK_THAT(screen.text(),
             ContainsSubstring("epoch 1/10  50/100  [===============>              ]\r"));
}

TEST_CASE("a bar never leaves its frame, and is redrawn at most ten times a second") {
  Screen full(/*terminal=*/true);
  full.console->tick({1, 250, 250});
  CHECK_THAT(full.text(), ContainsSubstring("250/100  [==============================]"));
  Screen busy(/*terminal=*/true);
  for (int step = 0; step < 1000; ++step) busy.console->tick({1, 1, 1});
  const std::string once = busy.text();
  CHECK(std::count(once.begin(), once.end(), '\r') <= 4);
}

TEST_CASE("the time that is left counts evaluations, and ends with max_steps") {
  Screen screen(/*terminal=*/false, /*quiet=*/false, /*max_steps=*/160);
  screen.console->tick({2, 50, 150});
  screen.console->pace(kPace);
  screen.console->step(kStep);
  CHECK(screen.text().ends_with("ETA 0:05\n"));
  Screen whole(/*terminal=*/false);
  whole.console->epoch(kEpoch);  // whose evaluation took half a second
  whole.console->tick({10, 0, 900});
  whole.console->pace(kPace);
  whole.console->step(kStep);
  CHECK(whole.text().ends_with("ETA 0:51\n"));
}

TEST_CASE("the head of the table is drawn once, when the run begins") {
  Screen first(/*terminal=*/true);
  first.console->begin({}, {});
  first.console->epoch(kEpoch);
  first.console->epoch(kEpoch);
  const std::string text = first.text();
  CHECK(text.find("test loss") != std::string::npos);
  CHECK(text.find("test loss") == text.rfind("test loss"));
  Screen restarted(/*terminal=*/true, /*quiet=*/false, std::nullopt, /*has_head=*/true);
  restarted.console->begin({}, {});
  restarted.console->epoch(kEpoch);
  CHECK_THAT(restarted.text(), !ContainsSubstring("test loss"));
}

TEST_CASE("a quiet console says nothing") {
  for (const bool terminal : {false, true}) {
    Screen screen(terminal, /*quiet=*/true);
    screen.console->begin({}, {});
    screen.console->pace(kPace);
    screen.console->tick({1, 1, 1});
    screen.console->step(kStep);
    screen.console->epoch(kEpoch);
    screen.console->end({});
    CHECK(screen.text().empty());
  }
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

TEST_CASE("times are as a clock shows them") {
  CHECK(clock_text(0) == "0:00");
  CHECK(clock_text(65.4) == "1:05");
  CHECK(clock_text(3599.6) == "1:00:00");
  CHECK(clock_text(100 * 3600 + 61) == "100:01:01");
  CHECK(clock_text(-1) == "0:00");
}

}  // namespace
}  // namespace mnist_train::report
