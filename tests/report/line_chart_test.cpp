#include <cmath>

#include "report/page/sections.h"
#include "support/catch.h"
#include "support/run_folder.h"

namespace mnist_train::report {
namespace {

using namespace testing;

TEST_CASE("NaN and infinity leave gaps in a line and do not stretch the axes") {
  const double nan = std::nan("");
  LineChart chart{"Loss", "step"};
  chart.series = {{"a", 0, {{1, 1}, {2, nan}, {3, 1.5}, {4, INFINITY}, {5, 2}}}};
  const std::string html = line_chart(chart);
  CHECK(occurrences(html, "<circle") == 3);
  const std::string path =
      html.substr(html.find("class=\"line c0\" data-x", html.find("viewBox=\"0 0 360")));
  CHECK(occurrences(path.substr(0, path.find("\"/>")), "M") == 3);
  CHECK_THAT(path, ContainsSubstring("data-x=\"1,3,5\" data-y=\"1,1.5,2\""));
  CHECK_THAT(html, !ContainsSubstring("nan"));
  CHECK_THAT(html, !ContainsSubstring("inf"));
}

TEST_CASE("a chart without any line is empty") {
  LineChart chart{"Loss", "step"};
  CHECK(line_chart(chart).empty());
  chart.series = {{"a", 0, {}}, {"b", 1, {{1, std::nan("")}}}};
  CHECK(line_chart(chart).empty());
  chart.series = {{"a", 0, {{1, 0.5}}}, {"b", 1, {{1, 0.75}}}};  // single points
  CHECK(line_chart(chart).empty());
}

TEST_CASE("long lines are thinned but keep their ends and spikes") {
  for (const int count : {1000, 1001, 1999, 100'000}) {
    LineChart chart{"Loss", "step"};
    ChartSeries series{"a", 0, {}};
    for (int i = 0; i < count; ++i) series.points.push_back({static_cast<double>(i), 2});
    const auto middle = static_cast<std::size_t>(count / 2);
    series.points[middle].y = 77;
    series.points[middle + 10].y = 0.25;
    series.points[middle - 10].y = std::nan("");
    chart.series = {series};
    const std::string html = line_chart(chart);
    const std::size_t begin = html.find("data-x=\"") + 8;
    const std::string xs = "," + html.substr(begin, html.find('"', begin) - begin) + ",";
    CHECK(occurrences(xs, ",") - 1 <= 1000);
    CHECK(occurrences(xs, ",") - 1 >= std::min<std::size_t>(499, xs.size()));
    for (const std::size_t x : {std::size_t{0}, middle, middle + 10, series.points.size() - 1}) {
      CHECK_THAT(xs, ContainsSubstring("," + std::to_string(x) + ","));
    }
    CHECK_THAT(html, ContainsSubstring(",77,") && ContainsSubstring(",0.25,"));
    CHECK(html.size() < 35'000);
  }
}

TEST_CASE("names in a chart are escaped") {
  LineChart chart{"<Accuracy>", "epoch", AxisFormat::kPercent};
  chart.series = {{"<test>", 0, {{1, 0.5}, {2, 0.75}}}};
  CHECK_THAT(line_chart(chart),
             ContainsSubstring("aria-label=\"&lt;Accuracy&gt;\"") && !ContainsSubstring("<test>"));
}

TEST_CASE("the legend shows the last value of each line, except for faint and empty lines") {
  LineChart chart{"Accuracy", "epoch", AxisFormat::kPercent};
  ChartSeries background{"single", 1, {{1, 0.25}, {2, 0.25}}};
  background.faint = true;
  chart.series = {background,
                  {"test", 0, {{1, 0.5}, {2, 0.75}, {3, std::nan("")}}},
                  {"gone", 2, {{1, std::nan("")}}}};
  const std::string html = line_chart(chart);
  CHECK(occurrences(html, "<li>") == 1);
  CHECK_THAT(html, ContainsSubstring("test <b>75.00 %</b></li>"));
  CHECK_THAT(html, ContainsSubstring("<span class=\"at\">epoch 2</span>"));
  CHECK(occurrences(html, "data-x=\"1,2\"") == 1);
}

/// Returns the tick labels of the vertical axis for a line through these values.
std::vector<std::string> ticks_of(const std::vector<double>& values,
                                  AxisScale scale = AxisScale::kLinear,
                                  AxisFormat format = AxisFormat::kDecimal) {
  LineChart chart{.title = "Loss", .x_name = "epoch", .y_format = format, .y_scale = scale};
  ChartSeries series{"test", 0, {}};
  for (const double value : values) {
    series.points.push_back({static_cast<double>(series.points.size()), value});
  }
  chart.series = {series};
  const std::string html = line_chart(chart);
  std::vector<std::string> texts;
  for (std::size_t at = 0; (at = html.find("class=\"tick end\"", at)) != std::string::npos; ++at) {
    const std::size_t begin = html.find('>', at) + 1;
    texts.push_back(html.substr(begin, html.find('<', begin) - begin));
  }
  return texts;
}

TEST_CASE("tick labels have enough digits to distinguish close ticks") {
  const std::vector<std::string> texts = ticks_of({3.68751, 3.68752});
  REQUIRE(texts.size() > 2);
  CHECK(std::adjacent_find(texts.begin(), texts.end()) == texts.end());
}

TEST_CASE("smoothing keeps constants, follows changes and skips gaps") {
  const std::vector<ChartPoint> points{{1, 2}, {2, 2}, {3, std::nan("")}, {4, 2}, {5, 10}};
  const std::vector<ChartPoint> result = smoothed(points, 4);
  REQUIRE(result.size() == 4);
  CHECK(result[2].y == Approx(2));
  CHECK(result[3].y > 2);
  CHECK(result[3].y < 10);
}

TEST_CASE("ticks are round numbers on the axis") {
  using Case = std::pair<std::vector<double>, std::vector<std::string>>;
  const auto [numbers, ticks] = GENERATE(values<Case>({
      {{1, 10}, {"2", "4", "6", "8", "10"}},
      {{0.9, 0.99}, {"0.9", "0.92", "0.94", "0.96", "0.98"}},
      {{0, 23456}, {"0", "5000", "10 k", "15 k", "20 k"}},
      {{5, 5}, {"4.6", "4.8", "5", "5.2", "5.4"}},
      {{0, 0}, {"0", "0.2", "0.4", "0.6", "0.8", "1"}},
  }));
  CHECK(ticks_of(numbers) == ticks);
}

TEST_CASE("a percentage axis that begins at zero is labelled 0 %") {
  CHECK(ticks_of({0, 0.5}, AxisScale::kLinear, AxisFormat::kPercent) ==
        std::vector<std::string>{"0 %", "10 %", "20 %", "30 %", "40 %", "50 %"});
}

TEST_CASE("a logarithmic axis has ticks at 1, 2 and 5, but becomes linear if a value is 0") {
  using Texts = std::vector<std::string>;
  constexpr AxisScale kScale = AxisScale::kLogarithmic;
  CHECK(ticks_of({0.03, 2.3}, kScale) == Texts{"0.05", "0.1", "0.2", "0.5", "1", "2"});
  CHECK(ticks_of({0, 20}, kScale) == Texts{"0", "5", "10", "15", "20"});
  CHECK(ticks_of({1e-9, 1e6}, kScale).size() < 12);
  LineChart chart{.title = "Loss", .x_name = "step", .y_scale = kScale};
  chart.series = {{"test", 0, {{1, 0.03}, {2, std::sqrt(0.03 * 2.3)}, {3, 2.3}}}};
  CHECK_THAT(line_chart(chart), ContainsSubstring("d=\"M58.0 172.0L200.0 91.0L342.0 10.0\""));
}

}  // namespace
}  // namespace mnist_train::report
