#include "train/schedule.h"

#include <cmath>

#include "support/catch.h"

namespace mnist_train::train {
namespace {

using settings::ScheduleName;
using testing::Approx;

constexpr std::int64_t kStepsPerEpoch = 10;
constexpr std::int64_t kSteps = 100;

Schedule schedule_of(const settings::ScheduleOptions& options, std::int64_t steps = kSteps) {
  settings::TrainOptions train;
  train.learning_rate = 0.4;
  train.schedule = options;
  return {train, kStepsPerEpoch, steps};
}

TEST_CASE("constant stays") {
  const Schedule schedule = schedule_of({});
  for (const std::int64_t step : {0, 1, 50, 99, 1000}) CHECK(schedule.learning_rate(step) == 0.4);
}

TEST_CASE("step drops by gamma every so many epochs") {
  settings::ScheduleOptions options;
  options.name = ScheduleName::kStep;
  options.step_epochs = 3;
  options.gamma = 0.5;
  const Schedule schedule = schedule_of(options);
  CHECK(schedule.learning_rate(29) == Approx(0.4));
  CHECK(schedule.learning_rate(30) == Approx(0.2));
  CHECK(schedule.learning_rate(59) == Approx(0.2));
  CHECK(schedule.learning_rate(60) == Approx(0.1));
}

TEST_CASE("linear goes straight to the final factor") {
  settings::ScheduleOptions options;
  options.name = ScheduleName::kLinear;
  options.final_factor = 0.1;
  const Schedule schedule = schedule_of(options);
  CHECK(schedule.learning_rate(0) == Approx(0.4));
  CHECK(schedule.learning_rate(50) == Approx(0.4 * 0.55));
  CHECK(schedule.learning_rate(99) == Approx(0.4 * (1 - 0.9 * 0.99)));
  CHECK(schedule.learning_rate(100) == Approx(0.04));
}

TEST_CASE("cosine is half a wave down to the final factor") {
  settings::ScheduleOptions options;
  options.name = ScheduleName::kCosine;
  const Schedule schedule = schedule_of(options);
  CHECK(schedule.learning_rate(0) == Approx(0.4));
  CHECK(schedule.learning_rate(25) == Approx(0.2 * (1 + std::sqrt(0.5))));
  CHECK(schedule.learning_rate(50) == Approx(0.2));
  CHECK(schedule.learning_rate(100) == Approx(0).margin(1e-12));
}

TEST_CASE("the warm-up rises to the rate, and the schedule begins behind it") {
  settings::ScheduleOptions options;
  options.name = ScheduleName::kCosine;
  options.warmup_epochs = 2;
  const Schedule schedule = schedule_of(options);
  CHECK(schedule.learning_rate(0) == Approx(0.4 / 20));
  CHECK(schedule.learning_rate(9) == Approx(0.2));
  CHECK(schedule.learning_rate(19) == Approx(0.4));
  CHECK(schedule.learning_rate(20) == Approx(0.4));
  CHECK(schedule.learning_rate(60) == Approx(0.2));
}

TEST_CASE("a warm-up longer than the run never ends") {
  settings::ScheduleOptions options;
  options.warmup_epochs = 1e6;
  const Schedule schedule = schedule_of(options, 5);
  CHECK(schedule.learning_rate(0) == Approx(0.08));
  CHECK(schedule.learning_rate(4) == Approx(0.4));
}

}  // namespace
}  // namespace mnist_train::train
