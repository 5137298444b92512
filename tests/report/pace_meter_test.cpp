#include "report/console.h"

#include "support/catch.h"

namespace mnist_train::report {
namespace {

using Catch::Matchers::WithinRel;

/// The step of that number, of 64 samples with a loss of 2 each.
PaceMeter::PacedStep step_at(std::int64_t number, double finished_s) {
  return {number, 64 * number, 128, 64, finished_s};
}

TEST_CASE("the first step of a start does not count: it is slower than the others") {
  PaceMeter meter;
  CHECK_FALSE(meter.add(step_at(11, 100)));  // took long
  CHECK_FALSE(meter.add(step_at(12, 100.05)));
  const auto pace = meter.add(step_at(13, 100.2));
  REQUIRE(pace);
  CHECK_THAT(pace->step_seconds, WithinRel(0.1, 1e-6));
  CHECK_THAT(pace->samples_per_second, WithinRel(640.0, 1e-6));
  CHECK_THAT(pace->loss, WithinRel(2.0, 1e-6));
}

TEST_CASE("the pace is that of the last second") {
  PaceMeter meter;
  (void)meter.add(step_at(1, 0));
  (void)meter.add(step_at(2, 1));
  CHECK_FALSE(meter.add(step_at(3, 1.5)));
  const auto pace = meter.add(step_at(6, 2));
  REQUIRE(pace);
  CHECK_THAT(pace->step_seconds, WithinRel(0.25, 1e-6));
}

TEST_CASE("what lies between two epochs counts for no step") {
  PaceMeter meter;
  (void)meter.add(step_at(1, 0));
  (void)meter.add(step_at(2, 1));
  meter.pause_until(50);
  const auto pace = meter.add(step_at(4, 51));
  REQUIRE(pace);
  CHECK_THAT(pace->step_seconds, WithinRel(0.5, 1e-6));
}

TEST_CASE("epochs of less than a second have a pace, too") {
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
