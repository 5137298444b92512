#pragma once

#include <string>
#include <vector>

namespace mnist_train::report {

struct ChartPoint {
  double x = 0;
  double y = 0;  // not finite: a gap
};

/// One line of a chart.
struct ChartSeries {
  std::string name;
  int colour = 0;                  // one of eight, each with a dash pattern of its own
  std::vector<ChartPoint> points;  // in the order of x
  bool faint = false;              // drawn as background of another line, not in the legend
};

enum class AxisFormat { kPercent, kDecimal, kCount };

struct LineChart {
  std::string title;
  std::string x_name;  // "epoch", "step"
  AxisFormat y_format = AxisFormat::kDecimal;
  bool logarithmic = false;  // where the values span a factor of ten and more
  bool from_zero = false;
  std::vector<ChartSeries> series = {};
};

/// Returns a figure in HTML: title, legend and an SVG drawing with a text that says what it shows.
/// Long lines are thinned to a few hundred points, each the mean of those it stands for. Empty
/// where there is nothing to draw.
std::string line_chart(const LineChart& chart);

/// Returns a running mean of the finite points: each result is the mean of a point and those before
/// it, in which `window` points weigh the most.
std::vector<ChartPoint> smoothed(const std::vector<ChartPoint>& points, double window);

/// The scale of one axis.
class ChartScale {
 public:
  /// Covers the finite ones of `values`, or 0 to 1 without any. The scale is linear where not all
  /// of them are positive.
  ChartScale(const std::vector<double>& values, bool logarithmic, bool whole_numbers = false);

  /// Returns the place of a value on the axis, which goes from 0 to 1.
  double at(double value) const;
  bool logarithmic() const { return logarithmic_; }
  /// Returns three to seven round values inside the axis.
  const std::vector<double>& ticks() const { return ticks_; }
  double high() const { return high_; }

 private:
  void place_ticks();
  void place_logarithmic_ticks();

  bool logarithmic_;
  bool whole_numbers_;
  double low_ = 0;
  double high_ = 1;
  std::vector<double> ticks_;
};

/// The drawing that all charts share, in its own units, of which a phone shows about one a pixel; y
/// grows downwards. The functions return SVG, `line_key` an SVG drawing.
namespace plot {

inline constexpr double kWidth = 320;
inline constexpr double kHeight = 200;
inline constexpr double kLeft = 50;
inline constexpr double kRight = kWidth - 16;
inline constexpr double kTop = 10;
inline constexpr double kBottom = kHeight - 34;

/// The opening tag of a drawing with a description for those who cannot see it.
std::string open_svg(const std::string& description);
/// A horizontal line with its value on the left.
std::string grid_line(double y, const std::string& text);
/// A value below the horizontal axis.
std::string x_tick(double x, const std::string& text);
/// The horizontal axis with its name.
std::string x_axis(const std::string& name);
/// A piece of a line in one of the eight colours, for legends and tables.
std::string line_key(int colour);

}  // namespace plot

}  // namespace mnist_train::report
