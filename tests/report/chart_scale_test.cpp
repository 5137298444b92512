#include "report/page/chart_scale.h"

#include <cmath>

#include "support/catch.h"

namespace mnist_train::report {
namespace {

using testing::Approx;

TEST_CASE("ticks are round numbers inside the axis") {
  using Case = std::pair<std::vector<double>, std::vector<double>>;
  const auto [numbers, ticks] = GENERATE(values<Case>({
      {{1, 10}, {2, 4, 6, 8, 10}},
      {{0.9, 0.99}, {0.9, 0.92, 0.94, 0.96, 0.98}},
      {{0, 23456}, {0, 5000, 10000, 15000, 20000}},
      {{5}, {4.6, 4.8, 5, 5.2, 5.4}},
      {{0}, {0, 0.2, 0.4, 0.6, 0.8, 1}},
      {{}, {0, 0.2, 0.4, 0.6, 0.8, 1}},
  }));
  const ChartScale scale(numbers, /*logarithmic=*/false);
  REQUIRE(scale.ticks().size() == ticks.size());
  for (std::size_t i = 0; i < ticks.size(); ++i) CHECK(scale.ticks()[i] == Approx(ticks[i]));
}

TEST_CASE("a logarithmic axis has ticks at 1, 2 and 5, and one for zeros is linear") {
  const ChartScale scale({0.03, 2.3}, /*logarithmic=*/true);
  CHECK(scale.logarithmic());
  REQUIRE(scale.ticks().size() == 6);
  CHECK(scale.ticks().front() == Approx(0.05));
  CHECK(scale.ticks().back() == Approx(2));
  CHECK(scale.at(0.03) == Approx(0).margin(1e-12));
  CHECK(scale.at(2.3) == Approx(1));
  CHECK(scale.at(std::sqrt(0.03 * 2.3)) == Approx(0.5));
  CHECK_FALSE(ChartScale({0, 1}, /*logarithmic=*/true).logarithmic());
  CHECK(ChartScale({1e-9, 1e6}, /*logarithmic=*/true).ticks().size() < 12);
}

}  // namespace
}  // namespace mnist_train::report
