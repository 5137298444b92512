#pragma once

#include <string>

/// The drawing that all charts share: where its lines lie, and its axes as SVG. In units of the
/// drawing, which a phone shows at about their size in pixels; y grows downwards.
namespace mnist_train::report::plot {

inline constexpr double kWidth = 320;
inline constexpr double kHeight = 200;
inline constexpr double kLeft = 50;
inline constexpr double kRight = kWidth - 16;
inline constexpr double kTop = 10;
inline constexpr double kBottom = kHeight - 34;

/// The opening tag; `description` says in words what the drawing shows.
std::string open_svg(const std::string& description);
/// A horizontal line with its value on the left.
std::string grid_line(double y, const std::string& text);
/// A value below the axis.
std::string x_tick(double x, const std::string& text);
/// The lower axis with its name.
std::string x_axis(const std::string& name);

/// The piece of a line that stands for `colour` (of eight) in legends and tables.
std::string line_key(int colour);

}  // namespace mnist_train::report::plot
