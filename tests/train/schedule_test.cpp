#include "train/schedule.h"

#include <cmath>
#include <limits>
#include <vector>

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

settings::ScheduleOptions one_cycle(double pct_start) {
  settings::ScheduleOptions options;
  options.name = ScheduleName::kOneCycle;
  options.max_learning_rate = 0.5;
  options.pct_start = pct_start;
  return options;
}

TEST_CASE("one_cycle rises on half a wave of the cosine and falls on another") {
  const Schedule schedule = schedule_of(one_cycle(0.31));  // its peak is step 30
  CHECK(schedule.learning_rate(0) == Approx(0.02));
  CHECK(schedule.learning_rate(15) == Approx(0.26));
  CHECK(schedule.learning_rate(30) == Approx(0.5));
  CHECK(schedule.learning_rate(53) == Approx(0.75 * 0.5 + 0.25 * 0.02 / 1e4));  // a third of it
  CHECK(schedule.learning_rate(99) == Approx(0.02 / 1e4));
  CHECK(schedule.learning_rate(1000) == Approx(0.02 / 1e4));
  settings::ScheduleOptions options = one_cycle(0.5);
  options.div_factor = 10;
  options.final_div_factor = 4;
  CHECK(schedule_of(options).learning_rate(0) == Approx(0.05));
  CHECK(schedule_of(options).learning_rate(99) == Approx(0.0125));
}

TEST_CASE("one_cycle of a few steps has rates, too") {
  CHECK(schedule_of(one_cycle(0.3), 1).learning_rate(0) == Approx(0.02 / 1e4));
  CHECK(schedule_of(one_cycle(0.5), 2).learning_rate(0) == Approx(0.5));  // the peak is step 0
  CHECK(schedule_of(one_cycle(0.5), 2).learning_rate(1) == Approx(0.02 / 1e4));
}

/// Returns the rates of the epochs' first steps, given the loss of each epoch before.
std::vector<double> plateau_rates(const settings::ScheduleOptions& options,
                                  const std::vector<double>& losses) {
  const Schedule schedule = schedule_of(options);
  PlateauState state;
  std::vector<double> rates;
  for (const double loss : losses) {
    rates.push_back(schedule.learning_rate(50, state));
    schedule.epoch_finished(loss, state);
  }
  return rates;
}

TEST_CASE("plateau lowers the rate after more than patience epochs without a better loss") {
  settings::ScheduleOptions options;
  options.name = ScheduleName::kPlateau;
  options.factor = 0.5;
  options.patience = 1;
  using Rates = std::vector<double>;
  // 0.99995 is not better than 1 by a ten-thousandth of it.
  CHECK(plateau_rates(options, {1, 0.99995, 2, 3, 4, 5, 0.9, 1, 1, 1}) ==
        Rates{0.4, 0.4, 0.4, 0.2, 0.2, 0.1, 0.1, 0.1, 0.1, 0.05});
  options.patience = 0;
  CHECK(plateau_rates(options, {1, 1, 0.5, 0.5, 0.5}) == Rates{0.4, 0.4, 0.2, 0.2, 0.1});
  CHECK(plateau_rates(options, {std::nan(""), 1, 0.5, 0.4}) == Rates{0.4, 0.2, 0.2, 0.2});
  options.min_learning_rate = 0.3;
  CHECK(plateau_rates(options, {1, 1, 1, 1}) == Rates{0.4, 0.4, 0.3, 0.3});
}

TEST_CASE("plateau makes no drop of less than 1e-8") {
  settings::ScheduleOptions options;
  options.name = ScheduleName::kPlateau;
  options.patience = 0;
  CHECK(plateau_rates(options, std::vector<double>(30, 1.0)).back() == Approx(4e-9));
}

TEST_CASE("plateau lowers the rate that a warm-up rises to") {
  settings::ScheduleOptions options;
  options.name = ScheduleName::kPlateau;
  options.warmup_epochs = 2;
  const Schedule schedule = schedule_of(options);
  CHECK(schedule.learning_rate(9) == Approx(0.2));
  CHECK(schedule.learning_rate(9, {.drops = 1}) == Approx(0.02));
  CHECK(schedule.learning_rate(20, {.drops = 1}) == Approx(0.04));
}

TEST_CASE("other schedules keep no state") {
  PlateauState state;
  schedule_of({}).epoch_finished(1.0, state);
  CHECK(state == PlateauState{});
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
