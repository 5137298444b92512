#include "report/console.h"

#include <fcntl.h>

#include <filesystem>
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
    Console::Setup setup;
    setup.quiet = quiet;
    setup.is_terminal = terminal;
    setup.fd = fd_.get();
    setup.epochs = 10;
    setup.steps_per_epoch = 100;
    console = std::make_unique<Console>(setup);
  }
  Screen(const Screen&) = delete;
  Screen& operator=(const Screen&) = delete;
  ~Screen() { spdlog::set_default_logger(before_); }

  std::string text() const { return read_file(path_, 1 << 20, ExitCode::kData); }

  std::unique_ptr<Console> console;

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

}  // namespace
}  // namespace mnist_train::report
