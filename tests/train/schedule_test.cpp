#include "train/schedule.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numbers>

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
  return {train, kStepsPerEpoch, {steps}};
}

/// The expected learning rate at a step.
struct Rate {
  std::int64_t step;
  double rate;
};

void check_rates(const settings::ScheduleOptions& options, const std::vector<Rate>& rates,
                 std::int64_t steps = kSteps) {
  const Schedule schedule = schedule_of(options, steps);
  for (const auto& [step, rate] : rates) {
    CAPTURE(static_cast<int>(options.name), step);
    CHECK(schedule.learning_rate(step) == Approx(rate).margin(1e-12));
  }
}

TEST_CASE("each schedule follows its curve, after a warm-up to its first rate") {
  check_rates({}, {{0, 0.4}, {1, 0.4}, {99, 0.4}, {1000, 0.4}});
  check_rates({.name = ScheduleName::kStep, .step_epochs = 3, .gamma = 0.5},
              {{29, 0.4}, {30, 0.2}, {59, 0.2}, {60, 0.1}});
  check_rates({.name = ScheduleName::kLinear, .final_factor = 0.1},
              {{0, 0.4}, {50, 0.4 * 0.55}, {99, 0.4 * (1 - 0.9 * 0.99)}, {100, 0.04}});
  check_rates({.name = ScheduleName::kCosine},
              {{0, 0.4}, {25, 0.2 * (1 + std::sqrt(0.5))}, {50, 0.2}, {100, 0}});
  check_rates({.name = ScheduleName::kCosine, .warmup_epochs = 2},
              {{0, 0.4 / 20}, {9, 0.2}, {19, 0.4}, {20, 0.4}, {60, 0.2}});
  check_rates({.warmup_epochs = 1e6}, {{0, 0.08}, {4, 0.4}}, 5);  // the warm-up never ends
}

settings::ScheduleOptions one_cycle(double pct_start) {
  return {.name = ScheduleName::kOneCycle, .max_learning_rate = 0.5, .pct_start = pct_start};
}

TEST_CASE("one_cycle rises along one half of a cosine wave and falls along another") {
  check_rates(one_cycle(0.31),  // the peak is step 30
              {{0, 0.02},
               {15, 0.26},
               {30, 0.5},
               {53, 0.75 * 0.5 + 0.25 * 0.02 / 1e4},  // a third of the way down
               {99, 0.02 / 1e4},
               {1000, 0.02 / 1e4}});
  settings::ScheduleOptions options = one_cycle(0.5);
  options.div_factor = 10;
  options.final_div_factor = 4;
  check_rates(options, {{0, 0.05}, {99, 0.0125}});
  check_rates(one_cycle(0.3), {{0, 0.02 / 1e4}}, 1);
  check_rates(one_cycle(0.5), {{0, 0.5}, {1, 0.02 / 1e4}}, 2);  // the peak is step 0
}

/// Returns the learning rate in each epoch, given the losses at the epochs' ends.
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

TEST_CASE("plateau lowers the rate after more than `patience` epochs without improvement") {
  settings::ScheduleOptions options{.name = ScheduleName::kPlateau, .factor = 0.5, .patience = 1};
  using Rates = std::vector<double>;
  // An improvement from 1 to 0.99995 is below the relative threshold of 1e-4.
  CHECK(plateau_rates(options, {1, 0.99995, 2, 3, 4, 5, 0.9, 1, 1, 1}) ==
        Rates{0.4, 0.4, 0.4, 0.2, 0.2, 0.1, 0.1, 0.1, 0.1, 0.05});
  options.patience = 0;
  CHECK(plateau_rates(options, {1, 1, 0.5, 0.5, 0.5}) == Rates{0.4, 0.4, 0.2, 0.2, 0.1});
  CHECK(plateau_rates(options, {std::nan(""), 1, 0.5, 0.4}) == Rates{0.4, 0.2, 0.2, 0.2});
  options.min_learning_rate = 0.3;
  CHECK(plateau_rates(options, {1, 1, 1, 1}) == Rates{0.4, 0.4, 0.3, 0.3});
}

TEST_CASE("plateau skips reductions of less than 1e-8") {
  const settings::ScheduleOptions options{.name = ScheduleName::kPlateau, .patience = 0};
  CHECK(plateau_rates(options, std::vector<double>(30, 1.0)).back() == Approx(4e-9));
}

TEST_CASE("plateau also lowers rates during a warm-up") {
  const Schedule schedule = schedule_of({.name = ScheduleName::kPlateau, .warmup_epochs = 2});
  CHECK(schedule.learning_rate(9) == Approx(0.2));
  CHECK(schedule.learning_rate(9, {.factor = 0.1}) == Approx(0.02));
  CHECK(schedule.learning_rate(20, {.factor = 0.1}) == Approx(0.04));
}

TEST_CASE("a run that is resumed with another schedule or factor does not repeat earlier drops") {
  PlateauState state{1.0, 0, 0.25};
  schedule_of({.name = ScheduleName::kPlateau, .factor = 0.1, .patience = 0})
      .epoch_finished(2.0, state);
  CHECK(state.factor == Approx(0.025));
  const Schedule other = schedule_of({});
  CHECK(other.learning_rate(20, state) == other.learning_rate(20));
  other.epoch_finished(1.0, state);
  CHECK(state == PlateauState{});
}

/// A run of 10 epochs with 95 samples each.
constexpr std::int64_t kSamplesOfEpoch = 95;

settings::TrainOptions ten_epochs(std::optional<std::int64_t> max_steps = std::nullopt) {
  settings::TrainOptions options;
  options.epochs = 10;
  options.max_steps = max_steps;
  options.learning_rate = 0.4;
  return options;
}

Progress progress_at(std::int64_t epoch, std::int64_t samples, std::int64_t step) {
  Progress progress;
  progress.epoch = epoch;
  progress.samples_into_epoch = samples;
  progress.step = step;
  return progress;
}

TEST_CASE("with a constant batch size, the schedule's span is the same at every step") {
  for (const std::optional<std::int64_t> max_steps : {std::optional<std::int64_t>(), {37}, {100}}) {
    const settings::TrainOptions options = ten_epochs(max_steps);
    for (std::int64_t step = 0; step <= 100; ++step) {
      const std::int64_t into = std::min(step % 10 * 10, kSamplesOfEpoch);
      const auto span =
          schedule_span(options, progress_at(step / 10, into, step), kSamplesOfEpoch, 10);
      CHECK(span.total_steps == max_steps.value_or(100));
      CHECK(span.skipped_steps == 0);
    }
  }
  // The cursor is past the last sample of an epoch that has not ended yet.
  CHECK(schedule_span(ten_epochs(), progress_at(3, kSamplesOfEpoch, 40), kSamplesOfEpoch, 10)
            .skipped_steps == 0);
}

TEST_CASE("a run resumed with another batch size ends after the remaining steps") {
  struct Case {
    std::int64_t samples_per_step, samples_into_epoch, step, steps_of_run;
  };
  // The run has finished 4 epochs and some steps of the fifth, with 10 samples per step.
  for (const auto& [size, into, step, steps] :
       std::vector<Case>{{20, 0, 40, 40 + 6 * 5},
                         {5, 0, 40, 40 + 6 * 19},
                         {20, 30, 43, 43 + 4 + 5 * 5},
                         {5, 30, 43, 43 + 13 + 5 * 19},
                         {20, kSamplesOfEpoch, 50, 50 + 5 * 5}}) {
    const auto at = progress_at(4, into, step);
    const auto steps_of_run = [&, size = size](const settings::TrainOptions& options) {
      const auto span = schedule_span(options, at, kSamplesOfEpoch, size);
      return span.total_steps - span.skipped_steps;
    };
    CHECK(steps_of_run(ten_epochs()) == steps);
    CHECK(steps_of_run(ten_epochs(60)) == std::min<std::int64_t>(steps, 60));
  }
}

TEST_CASE("schedules of a run resumed with another batch size continue at the same epoch") {
  for (const ScheduleName name : {ScheduleName::kLinear, ScheduleName::kCosine, ScheduleName::kStep,
                                  ScheduleName::kOneCycle, ScheduleName::kConstant}) {
    settings::TrainOptions options = ten_epochs();
    options.schedule.name = name;
    options.schedule.step_epochs = 3;
    options.schedule.max_learning_rate = 0.4;
    if (name != ScheduleName::kOneCycle) options.schedule.warmup_epochs = 1;
    // Five epochs with 5 samples per step, then 19 samples per step.
    const auto progress = progress_at(5, 0, 95);
    const Schedule resumed(options, 5, schedule_span(options, progress, kSamplesOfEpoch, 19));
    const Schedule whole(options, 5, {50});
    for (std::int64_t step = 0; step < 25; ++step) {
      CHECK(resumed.learning_rate(95 + step) == whole.learning_rate(25 + step));
    }
  }
}

TEST_CASE("max_steps ends the schedule of a run resumed with another batch size") {
  settings::TrainOptions options = ten_epochs(50);
  options.schedule.name = ScheduleName::kCosine;
  const auto progress = progress_at(4, 0, 40);
  const Schedule schedule(options, 5, schedule_span(options, progress, kSamplesOfEpoch, 20));
  CHECK(schedule.learning_rate(40) == Approx(0.2 * (1 + std::cos(0.8 * std::numbers::pi))));
  CHECK(schedule.learning_rate(50) == Approx(0).margin(1e-12));
}

}  // namespace
}  // namespace mnist_train::train
