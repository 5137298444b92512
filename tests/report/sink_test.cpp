#include "report/sink.h"

#include <spdlog/sinks/ostream_sink.h>
#include <spdlog/spdlog.h>

#include <memory>
#include <sstream>
#include <string>

#include "base/error.h"
#include "support/catch.h"
#include "support/error_of.h"
#include "support/temp_folder.h"

namespace mnist_train::report {
namespace {

using Catch::Matchers::ContainsSubstring;

/// Captures what is logged while it lives.
class CapturedLog {
 public:
  CapturedLog() : before_(spdlog::default_logger()) {
    spdlog::set_default_logger(std::make_shared<spdlog::logger>(
        "captured", std::make_shared<spdlog::sinks::ostream_sink_mt>(stream_)));
  }
  CapturedLog(const CapturedLog&) = delete;
  CapturedLog& operator=(const CapturedLog&) = delete;
  ~CapturedLog() { spdlog::set_default_logger(before_); }

  std::string text() const { return stream_.str(); }

 private:
  std::ostringstream stream_;
  std::shared_ptr<spdlog::logger> before_;
};

/// A sink whose disk is full until `works`.
class FailingSink : public Sink {
 public:
  explicit FailingSink(const bool& works, int& steps) : works_(works), steps_(steps) {}
  void step(const StepRecord& /*record*/) override {
    if (!works_) throw Error(ExitCode::kRunFailed, "events: no space");
    ++steps_;
  }
  void add_position(LogPositions& positions) const override { positions.event_bytes = 7; }

 private:
  const bool& works_;
  int& steps_;
};

std::size_t count_of(const std::string& text, const std::string& part) {
  std::size_t count = 0;
  for (std::size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) {
    ++count;
  }
  return count;
}

TEST_CASE("a run continues without an optional sink, warns once, and tries again") {
  const CapturedLog log;
  bool works = false;
  int steps = 0;
  const auto sink = optional_sink("TensorBoard's events",
                                  [&] { return std::make_unique<FailingSink>(works, steps); });
  sink->step({});
  sink->step({});
  CHECK(count_of(log.text(), "events: no space; the run continues without TensorBoard's events") ==
        1);
  works = true;
  sink->step({});
  CHECK(steps == 1);
  LogPositions positions;
  sink->add_position(positions);
  CHECK(positions.event_bytes == 7);
}

TEST_CASE("an optional sink that cannot be made is a warning, and then nothing") {
  const CapturedLog log;
  const auto sink = optional_sink("its page", []() -> std::unique_ptr<Sink> {
    throw Error(ExitCode::kRunFailed, "no folder");
  });
  sink->epoch({});
  sink->end({});
  LogPositions positions;
  sink->add_position(positions);
  CHECK(positions.event_bytes == 0);
  CHECK_THAT(log.text(), ContainsSubstring("no folder; the run continues without its page"));
}

TEST_CASE("a summary that cannot be written ends the run") {
  const testing::TempFolder folder;
  const auto sink = summary_sink(folder.path() / "missing");
  const auto failure = testing::error_of([&] { sink->refresh({}); });
  CHECK(failure.code == ExitCode::kRunFailed);
}

}  // namespace
}  // namespace mnist_train::report
