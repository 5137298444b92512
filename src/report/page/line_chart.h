#pragma once

#include <string>
#include <vector>

namespace mnist_train::report {

struct ChartPoint {
  double x = 0;
  double y = 0;  // not finite: a gap
};

/// Number format of an axis.
enum class AxisFormat { kPercent, kDecimal, kCount, kSeconds };

/// One line of a chart.
struct ChartSeries {
  std::string name;
  int colour = 0;                  // one of eight, each with its own dash pattern
  std::vector<ChartPoint> points;  // sorted by x
  bool faint = false;              // drawn in the background, without an entry in the legend
};

struct LineChart {
  std::string title;
  std::string x_name;  // "epoch", "step"
  AxisFormat y_format = AxisFormat::kDecimal;
  bool logarithmic = false;  // if the values span a factor of ten or more
  bool from_zero = false;
  std::vector<ChartSeries> series = {};
};

/// Returns an HTML figure: title, legend with the last values, and an SVG drawing with a
/// description as text. Lines are thinned to 1,000 points; spikes are kept. Returns nothing if no
/// two points differ in x.
std::string line_chart(const LineChart& chart);

/// Returns the exponential running mean of the finite points, with a time constant of `window`
/// points.
std::vector<ChartPoint> smoothed(const std::vector<ChartPoint>& points, double window);

/// The scale of one axis.
class ChartScale {
 public:
  /// Covers the finite ones of `values`, or 0 to 1 if there are none. A scale is logarithmic only
  /// if all values are positive.
  ChartScale(const std::vector<double>& values, bool logarithmic, bool whole_numbers = false);

  /// Position of a value on the axis, in [0,1].
  double at(double value) const;
  bool logarithmic() const { return logarithmic_; }
  /// Round values on the axis, usually three to seven.
  const std::vector<double>& ticks() const { return ticks_; }
  double high() const { return high_; }

 private:
  void add_linear_ticks(bool whole_numbers);
  void add_logarithmic_ticks();

  bool logarithmic_ = false;
  double low_ = 0;
  double high_ = 1;
  std::vector<double> ticks_;
};

/// Parts of a chart as HTML and SVG. Coordinates are about one pixel, so all charts have letters of
/// the same size; y grows downwards.
namespace plot {

inline constexpr double kWidth = 360;
inline constexpr double kHeight = 210;
inline constexpr double kLeft = 58;
inline constexpr double kRight = kWidth - 18;
inline constexpr double kTop = 10;
inline constexpr double kBottom = kHeight - 38;

/// A value and its position in the drawing.
struct Reading {
  ChartPoint point;
  double place_x = 0;
  double place_y = 0;
  bool is_last = false;  // before a gap
};

/// An entry of a legend with its last value. The page's script shows the value at the cursor
/// instead.
struct LegendEntry {
  std::string key;  // a drawing
  std::string name;
  std::string value;
};

/// A chart's figure. `last_x` is the position on the horizontal axis of the legend's values.
std::string figure(const std::string& title, const std::string& last_x,
                   const std::vector<LegendEntry>& legend, const std::string& svg);
/// The opening tag of a drawing with a description for screen readers.
std::string open_svg(const std::string& description, AxisFormat format, const std::string& x_name);
/// A line through the readings. A readable one carries their values: the n-th readable line belongs
/// to the n-th entry of the legend.
std::string path(const std::string& css_class, const std::vector<Reading>& readings,
                 bool is_readable);
/// A horizontal line with its value on the left.
std::string grid_line(double y, const std::string& text);
/// A value below the horizontal axis.
std::string x_tick(double x, const std::string& text);
/// The horizontal axis with its name.
std::string x_axis(const std::string& name);
/// A sample of a line in one of the eight colours, for legends and tables.
std::string line_key(int colour);

}  // namespace plot

}  // namespace mnist_train::report
