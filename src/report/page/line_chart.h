#pragma once

#include <string>
#include <vector>

namespace mnist_train::report {

struct Point {
  double x = 0;
  double y = 0;  // not finite: a gap
};

/// One line of a chart.
struct Series {
  std::string name;
  int colour = 0;             // one of eight, each with a dash pattern of its own
  std::vector<Point> points;  // by x
  bool faint = false;         // the background of another line; not in the legend
};

enum class AxisFormat { kPercent, kDecimal, kCount };

struct LineChart {
  std::string title;
  std::string x_name;  // "epoch", "step"
  AxisFormat y_format = AxisFormat::kDecimal;
  bool logarithmic = false;  // where the values span a factor of ten and more
  bool from_zero = false;
  std::vector<Series> series = {};
};

/// A figure in HTML: title, legend, an SVG drawing whose text says in words what it shows. Long
/// lines are thinned to a few hundred points, each the mean of those that it stands for. Empty
/// where there is nothing to draw.
std::string line_chart(const LineChart& chart);

/// The mean of every point and those before it, with `window` points weighing the most.
std::vector<Point> smoothed(const std::vector<Point>& points, double window);

}  // namespace mnist_train::report
