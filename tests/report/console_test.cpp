#include <fcntl.h>
#include <pty.h>
#include <unistd.h>

#include "base/file.h"
#include "base/print.h"
#include "report/records.h"
#include "support/catch.h"
#include "support/scoped_environment.h"
#include "support/temp_folder.h"

namespace mnist_train::report {
namespace {

namespace fs = std::filesystem;
using namespace testing;

constexpr StepRecord kStep{2, 150, 0.125, 0.01, 2048};
const EpochResult kEpoch{.record = {.epoch = 2,
                                    .step = 200,
                                    .train_loss = 0.5,
                                    .train_accuracy = 0.875,
                                    .test_loss = 0.25,
                                    .test_accuracy = 0.9375,
                                    .test_balanced_accuracy = 0.5,
                                    .test_top5_accuracy = 0.99,
                                    .train_seconds = 3.5,
                                    .test_seconds = 0.5,
                                    .samples_per_second = 17142.0}};

/// A console that writes its output and log to a file.
class Screen {
 public:
  explicit Screen(bool terminal, bool quiet = false,
                  std::optional<std::int64_t> max_steps = std::nullopt, bool header_printed = false)
      : before_(spdlog::default_logger()) {
    LogSetup log;
    log.console_fd = fd_.get();
    set_up_logging(log);
    ConsoleSetup setup;
    setup.quiet = quiet;
    setup.is_terminal = terminal;
    setup.fd = fd_.get();
    setup.epochs = 10;
    setup.max_steps = max_steps;
    setup.header_printed = header_printed;
    console = console_sink(setup);
  }
  /// Starts a run with 1,024 samples per step.
  void begin() const {
    RunStart start;
    start.dataset.train = 102'400;
    start.steps_per_epoch = 100;
    console->begin(start, {});
  }
  Screen(const Screen&) = delete;
  Screen& operator=(const Screen&) = delete;
  ~Screen() { spdlog::set_default_logger(before_); }

  std::string text() const { return read_file(path_, 1 << 20, ExitCode::kData); }

  std::unique_ptr<Sink> console;

 private:
  TempFolder folder_;
  fs::path path_ = folder_.path() / "screen";
  UniqueFd fd_{::open(path_.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600)};
  std::shared_ptr<spdlog::logger> before_;
};

TEST_CASE("without a terminal, progress is printed as plain lines") {
  Screen screen(/*terminal=*/false);
  screen.begin();
  screen.console->tick({2, 50, 150});
  screen.console->step(kStep);
  screen.console->epoch(kEpoch);
  CHECK(screen.text() ==
        "epoch 2/10, step 50/100: loss 0.1250, 2,048 samples/s, ETA 7:05\n"
        "epoch 2/10: train loss 0.5000, accuracy 87.50 %; test loss 0.2500, accuracy 93.75 %; "
        "4.00 s, 17,142 samples/s\n");
}

TEST_CASE("a step that is recorded after later steps is printed with its own number") {
  Screen screen(/*terminal=*/false);
  screen.begin();
  screen.console->tick({2, 60, 160});
  screen.console->step(kStep);
  CHECK(screen.text().starts_with("epoch 2/10, step 50/100: "));
}

TEST_CASE("a terminal shows metrics and a progress bar until the epoch's line replaces them") {
  Screen screen(/*terminal=*/true, /*quiet=*/false, std::nullopt, /*header_printed=*/true);
  screen.begin();
  screen.console->step(kStep);
  screen.console->tick({2, 50, 150});
  const std::string drawn = screen.text();
  CHECK_THAT(drawn, ContainsSubstring(
                        "epoch 2/10  50/100  loss 0.1250  2,048 samples/s  ETA 7:05  [======="));
  CHECK(drawn.ends_with("]\r"));
  CHECK_THAT(drawn, !ContainsSubstring("\n"));
  screen.console->epoch(kEpoch);
  CHECK_THAT(screen.text(), ContainsSubstring("]\r\r\x1b[J"));
  CHECK_THAT(screen.text(),
             ContainsSubstring("   2/10     0.2500    93.75 %      0.5000     87.50 %"));
  CHECK_THAT(screen.text(), !ContainsSubstring("train loss 0.5"));
}

TEST_CASE("the bar never exceeds its width and is redrawn at most ten times per second") {
  Screen half(/*terminal=*/true);
  half.begin();
  half.console->tick({1, 50, 50});  // before the speed is known
  CHECK_THAT(half.text(),
             ContainsSubstring("epoch 1/10  50/100  [===============>              ]\r"));
  Screen full(/*terminal=*/true);
  full.begin();
  full.console->tick({1, 250, 250});
  CHECK_THAT(full.text(), ContainsSubstring("250/100  [==============================]"));
  Screen busy(/*terminal=*/true);
  busy.begin();
  for (int step = 0; step < 1000; ++step) busy.console->tick({1, 1, 1});
  const std::string once = busy.text();
  CHECK(std::count(once.begin(), once.end(), '\r') <= 4);
}

TEST_CASE("the remaining time includes evaluations and ends at max_steps") {
  Screen screen(/*terminal=*/false, /*quiet=*/false, /*max_steps=*/160);
  screen.begin();
  screen.console->tick({2, 50, 150});
  screen.console->step(kStep);
  CHECK(screen.text().ends_with("ETA 0:05\n"));
  Screen whole(/*terminal=*/false);
  whole.begin();
  whole.console->epoch(kEpoch);  // its evaluation took half a second
  whole.console->tick({10, 0, 900});
  whole.console->step(kStep);
  CHECK(whole.text().ends_with("ETA 0:51\n"));
  Screen slow(/*terminal=*/false);
  slow.begin();
  slow.console->tick({1, 0, 0});
  slow.console->step({1, 1, 0.125, 0.01, 1024 / 7.2261});
  CHECK(slow.text().ends_with("ETA 2:00:26\n"));
}

TEST_CASE("the table header is printed once") {
  Screen first(/*terminal=*/true);
  first.console->begin({}, {});
  first.console->epoch(kEpoch);
  first.console->epoch(kEpoch);
  const std::string text = first.text();
  CHECK(text.find("test loss") != std::string::npos);
  CHECK(text.find("test loss") == text.rfind("test loss"));
  Screen restarted(/*terminal=*/true, /*quiet=*/false, std::nullopt, /*header_printed=*/true);
  restarted.console->begin({}, {});
  restarted.console->epoch(kEpoch);
  CHECK_THAT(restarted.text(), !ContainsSubstring("test loss"));
}

TEST_CASE("numbers are grouped by thousands") {
  using Case = std::pair<std::int64_t, const char*>;
  for (const auto& [number, text] :
       {Case{0, "0"}, Case{999, "999"}, Case{1000, "1,000"}, Case{60000, "60,000"},
        Case{1234567, "1,234,567"}, Case{-999, "-999"}, Case{-1000, "-1,000"},
        Case{-123456, "-123,456"}, Case{INT64_MIN, "-9,223,372,036,854,775,808"}}) {
    CHECK(with_thousands(number) == text);
  }
}

TerminalStyle style_of(const char* term, const char* no_color) {
  const ScopedEnvironment first("TERM", term);
  const ScopedEnvironment second("NO_COLOR", no_color);
  return terminal_style();
}

TEST_CASE("colours and redrawing depend on the environment") {
  CHECK(style_of(nullptr, nullptr).colours);
  CHECK(style_of("xterm", "").colours);
  CHECK_FALSE(style_of("xterm", "1").colours);
  CHECK_FALSE(style_of("dumb", nullptr).colours);
  CHECK_FALSE(style_of("dumb", nullptr).redraws);
  CHECK(style_of("xterm", "1").redraws);
}

EpochRecord epoch(std::int64_t number, double accuracy) {
  EpochRecord record = kEpoch.record;
  record.epoch = number;
  record.test_accuracy = accuracy;
  return record;
}

/// The table of epochs on a terminal of a given width.
class Table {
 public:
  explicit Table(unsigned short columns, const RunStart& start = {}, bool colours = false) {
    winsize size{.ws_row = 40, .ws_col = columns, .ws_xpixel = 0, .ws_ypixel = 0};
    std::array<int, 2> ends{};
    REQUIRE(::openpty(ends.data(), &ends[1], nullptr, nullptr, &size) == 0);
    main_ = UniqueFd(ends[0]);
    other_ = UniqueFd(ends[1]);
    ConsoleSetup setup;
    setup.is_terminal = true;
    setup.fd = other_.get();
    setup.epochs = 10;
    setup.style.colours = colours;
    console_ = console_sink(setup);
    console_->begin(start, {});
    head = written();
  }

  std::string line(const EpochRecord& record) {
    console_->epoch({.record = record});
    return written();
  }

  std::string head;

 private:
  /// Reads output until the end of a line, because a terminal may transmit a line in parts.
  std::string written() const {
    std::string text;
    std::array<char, 4096> part{};
    while (!text.ends_with('\n')) {
      const ssize_t size = ::read(main_.get(), part.data(), part.size());
      REQUIRE(size > 0);
      text.append(part.data(), static_cast<std::size_t>(size));
    }
    return replaced(text, "\r", "");
  }

  UniqueFd main_;
  UniqueFd other_;
  std::unique_ptr<Sink> console_;
};

TEST_CASE("a narrow terminal shows fewer columns, none cut off and all aligned with the header") {
  const std::string head =
      "  epoch  test loss  test acc.  validation  train loss  train acc.      time  samples/s";
  RunStart start;
  start.dataset.validation = 10;
  EpochRecord record = epoch(1, 0.5);
  record.validation_loss = 0.5;
  record.validation_accuracy = 0.8125;
  for (unsigned short columns = 1; columns < 130; ++columns) {
    Table table(columns, start);
    const std::size_t width = table.head.size() - 1;
    CHECK(head.starts_with(table.head.substr(0, width)));
    CHECK((width == 0 || width < columns));
    CHECK((width == head.size() || head[width] == ' '));
    CHECK(table.line(record).size() == width + 1);
  }
  Table narrow(50, start);
  CHECK(narrow.head == "  epoch  test loss  test acc.  validation\n");
  CHECK_THAT(narrow.line(record), ContainsSubstring("50.00 %     81.25 %"));
}

TEST_CASE("the best accuracy so far is coloured, according to the validation set if there is one") {
  Table plain(100, {}, /*colours=*/true);
  CHECK_THAT(plain.line(epoch(1, 0.75)), ContainsSubstring("\x1b[1;32m    75.00 %\x1b[0m"));
  CHECK_THAT(plain.line(epoch(2, 0.5)), !ContainsSubstring("\x1b[1;32m"));
  RunStart start;
  start.dataset.validation = 10;
  Table table(100, start, /*colours=*/true);
  EpochRecord first = epoch(1, 0.75);
  first.validation_loss = 0.5;
  first.validation_accuracy = 0.9;
  EpochRecord second = epoch(2, 0.875);
  second.validation_loss = 0.5;
  second.validation_accuracy = 0.8;
  CHECK_THAT(table.line(first), ContainsSubstring("\x1b[1;32m    75.00 %\x1b[0m"));
  CHECK_THAT(table.line(second), !ContainsSubstring("\x1b[1;32m"));
}

TEST_CASE("balanced and top-5 accuracy are shown for imbalanced or many classes") {
  RunStart start;
  start.dataset.classes = 50;
  start.test_class_sizes = {3, 9};
  Table table(50, start);
  CHECK(table.head == "  epoch  test loss  test acc.  balanced     top 5\n");
  CHECK(table.line(kEpoch.record) == "   2/10     0.2500    93.75 %   50.00 %   99.00 %\n");
  Screen screen(/*terminal=*/false);
  screen.console->begin(start, {});
  screen.console->epoch(kEpoch);
  CHECK_THAT(screen.text(), ContainsSubstring("test loss 0.2500, accuracy 93.75 %, balanced 50.00 "
                                              "%, top 5 99.00 %; 4.00 s"));
}

TEST_CASE("a finished run warns about classes that were never predicted") {
  Screen screen(/*terminal=*/false, /*quiet=*/true);
  EpochResult epoch = kEpoch;
  epoch.counts = count_by_class({90, 0, 0,  //
                                 9, 0, 0,   //
                                 1, 0, 0},
                                3);
  RunStart start;
  start.class_names = {"a", "b\n", std::string(200, 'c')};
  start.train_class_sizes = {900, 90, 10};
  screen.console->begin(start, {});
  screen.console->epoch(epoch);
  Summary summary;
  summary.status = "stopped";
  screen.console->end(summary);
  CHECK(screen.text().empty());
  summary.status = "finished";
  screen.console->end(summary);
  CHECK_THAT(screen.text(), ContainsSubstring("2 of 3 classes were never predicted: b\\x0a, ccc") &&
                                ContainsSubstring("ccc…; class_weights \"balanced\" gives") &&
                                !ContainsSubstring(std::string(50, 'c')));
}

TEST_CASE("class sizes are shown if a class is empty or the nonempty classes differ much") {
  CHECK(class_sizes_text({5, 5, 4}, {}).empty());
  CHECK(class_sizes_text({5, 0, 5}, {}) == " of 0 (1) to 5 (2) training images");
  CHECK(class_sizes_text({1200, 3, 40}, {}) == " of 3 (1) to 1,200 (0) training images");
  CHECK(class_sizes_text({9, 2}, {"cat", "dog"}) == " of 2 (dog) to 9 (cat) training images");
  CHECK(!is_imbalanced({}));
  CHECK(!is_imbalanced({0, 0}));
  CHECK(!is_imbalanced({0, 980, 1135, 892}));
  CHECK(!is_imbalanced({3, 2}));
  CHECK(is_imbalanced({4, 2}));
}

}  // namespace
}  // namespace mnist_train::report
