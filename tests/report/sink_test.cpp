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
using Catch::Matchers::WithinRel;

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

TEST_CASE("a run continues if an optional sink fails: it warns once and tries again") {
  const CapturedLog log;
  bool works = false;
  int steps = 0;
  const auto sink = optional_sink("TensorBoard's events",
                                  [&] { return std::make_unique<FailingSink>(works, steps); });
  sink->step({});
  sink->step({});
  const std::string warning = "events: no space; the run continues without TensorBoard's events";
  CHECK_THAT(log.text(), ContainsSubstring(warning));
  CHECK(log.text().find(warning) == log.text().rfind(warning));
  works = true;
  sink->step({});
  CHECK(steps == 1);
  LogPositions positions;
  sink->add_position(positions);
  CHECK(positions.event_bytes == 7);
}

TEST_CASE("an optional sink that cannot be made is a warning and then ignored") {
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

TEST_CASE("failing to write the summary ends the run") {
  const testing::TempFolder folder;
  const auto sink = summary_sink(folder.path() / "missing");
  const auto failure = testing::error_of([&] { sink->refresh({}); });
  CHECK(failure.code == ExitCode::kRunFailed);
}

/// A step of 64 samples with a loss of 2 each.
PaceMeter::PacedStep step_at(std::int64_t number, double finished_s) {
  return {number, 64 * number, 128, 64, finished_s};
}

TEST_CASE("the first step of a start is excluded as warm-up") {
  PaceMeter meter;
  CHECK_FALSE(meter.add(step_at(11, 100)));  // took long
  CHECK_FALSE(meter.add(step_at(12, 100.05)));
  const auto pace = meter.add(step_at(13, 100.2));
  REQUIRE(pace);
  CHECK_THAT(pace->step_seconds, WithinRel(0.1, 1e-6));
  CHECK_THAT(pace->samples_per_second, WithinRel(640.0, 1e-6));
  CHECK_THAT(pace->loss, WithinRel(2.0, 1e-6));
}

TEST_CASE("the pace covers the last second") {
  PaceMeter meter;
  (void)meter.add(step_at(1, 0));
  (void)meter.add(step_at(2, 1));
  CHECK_FALSE(meter.add(step_at(3, 1.5)));
  const auto pace = meter.add(step_at(6, 2));
  REQUIRE(pace);
  CHECK_THAT(pace->step_seconds, WithinRel(0.25, 1e-6));
}

TEST_CASE("time between epochs is excluded") {
  PaceMeter meter;
  (void)meter.add(step_at(1, 0));
  (void)meter.add(step_at(2, 1));
  meter.pause_until(50);
  const auto pace = meter.add(step_at(4, 51));
  REQUIRE(pace);
  CHECK_THAT(pace->step_seconds, WithinRel(0.5, 1e-6));
}

TEST_CASE("epochs shorter than a second have a pace") {
  PaceMeter meter;
  (void)meter.add(step_at(1, 0));
  (void)meter.add(step_at(2, 0.5));
  CHECK_FALSE(meter.add(step_at(3, 1)));
  meter.pause_until(1.2);
  CHECK_FALSE(meter.add(step_at(4, 1.6)));
  meter.pause_until(1.7);
  const auto pace = meter.add(step_at(5, 1.9));
  REQUIRE(pace);
  CHECK_THAT(pace->step_seconds, WithinRel(1.1 / 3, 1e-6));
}

}  // namespace
}  // namespace mnist_train::report
