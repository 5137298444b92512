#pragma once

#include <string>
#include <vector>

namespace mnist_train::report {

struct ChartPoint {
  double x = 0;
  double y = 0;  // not finite: a gap
};

/// How the values of an axis are written.
enum class AxisFormat { kPercent, kDecimal, kCount, kSeconds };

/// The drawing that all charts share, in its own units, one of which is about a pixel everywhere,
/// so that all charts have letters of one size; y grows downwards. The functions return HTML and
/// SVG.
namespace plot {

inline constexpr double kWidth = 360;
inline constexpr double kHeight = 210;
inline constexpr double kLeft = 58;
inline constexpr double kRight = kWidth - 18;
inline constexpr double kTop = 10;
inline constexpr double kBottom = kHeight - 38;

/// A value and where it is drawn.
struct Reading {
  ChartPoint point;
  double place_x = 0;
  double place_y = 0;
  bool is_last = false;  // before a gap
};

/// A name in a legend, with the last value, which the page's script replaces by any other that the
/// reader points at.
struct LegendEntry {
  std::string key;  // a drawing
  std::string name;
  std::string value;
};

/// A chart's figure. `last_x` says where on the horizontal axis the legend's values are from.
std::string figure(const std::string& title, const std::string& last_x,
                   const std::vector<LegendEntry>& legend, const std::string& svg);
/// The opening tag of a drawing with a description for those who cannot see it.
std::string open_svg(const std::string& description, AxisFormat format, const std::string& x_name);
/// A line through the readings. A readable one carries their values, for the entry of the legend
/// with the same number among the readable ones.
std::string path(const std::string& css_class, const std::vector<Reading>& readings,
                 bool is_readable);
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
