#pragma once

#include <string>
#include <vector>

#include "report/page/plot.h"

namespace mnist_train::report {

/// One line of a chart.
struct ChartSeries {
  std::string name;
  int colour = 0;                  // one of eight, each with a dash pattern of its own
  std::vector<ChartPoint> points;  // in the order of x
  bool faint = false;              // drawn as background of another line, not in the legend
};

struct LineChart {
  std::string title;
  std::string x_name;  // "epoch", "step"
  AxisFormat y_format = AxisFormat::kDecimal;
  bool logarithmic = false;  // where the values span a factor of ten and more
  bool from_zero = false;
  std::vector<ChartSeries> series = {};
};

/// Returns a figure in HTML: title, legend with the last values, and an SVG drawing with a text
/// that says what it shows. Lines of more than 1,000 points are thinned to that, spikes kept. Empty
/// where there are no two points side by side.
std::string line_chart(const LineChart& chart);

/// Returns a running mean of the finite points: each result is the mean of a point and those before
/// it, in which `window` points weigh the most.
std::vector<ChartPoint> smoothed(const std::vector<ChartPoint>& points, double window);

}  // namespace mnist_train::report
