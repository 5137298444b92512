#include "report/page/line_chart.h"

#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <cmath>

#include "report/page/html.h"
#include "report/page/plot_area.h"
#include "report/page/scale.h"

namespace mnist_train::report {

namespace {

constexpr std::size_t kMaxPoints = 240;
constexpr std::size_t kMaxDots = 25;
constexpr double kLogarithmicFrom = 10;

bool is_finite(const Point& point) { return std::isfinite(point.x) && std::isfinite(point.y); }

std::vector<Point> thinned(const std::vector<Point>& points) {
  if (points.size() <= kMaxPoints) return points;
  std::vector<Point> result;
  for (std::size_t bucket = 0; bucket < kMaxPoints; ++bucket) {
    const std::size_t begin = bucket * points.size() / kMaxPoints;
    const std::size_t end = (bucket + 1) * points.size() / kMaxPoints;
    double sum = 0;
    std::size_t used = 0;
    for (std::size_t i = begin; i < end; ++i) {
      if (!is_finite(points[i])) continue;
      sum += points[i].y;
      ++used;
    }
    result.push_back({points[end - 1].x, used > 0 ? sum / static_cast<double>(used) : NAN});
  }
  return result;
}

std::string value_text(double value, AxisFormat format) {
  switch (format) {
    case AxisFormat::kPercent:
      return percent(value);
    case AxisFormat::kCount:
      return count(value);
    case AxisFormat::kDecimal:
      break;
  }
  return decimal(value);
}

/// Short, for the axis.
std::string tick_text(double value, AxisFormat format) {
  if (format == AxisFormat::kPercent) return fmt::format("{:.4g} %", 100 * value);
  if (std::abs(value) < 1e-12) return "0";
  if (value >= 1e6) return fmt::format("{:.3g} M", value / 1e6);
  if (value >= 1e4) return fmt::format("{:.4g} k", value / 1e3);
  return fmt::format("{:.4g}", value);
}

class Drawing {
 public:
  explicit Drawing(const LineChart& chart)
      : chart_(chart), x_(x_scale(chart)), y_(y_scale(chart)) {}

  std::string svg() const {
    std::string text = plot::open_svg(description()) + axes();
    for (const Series& series : chart_.series) text += line(series);
    return text + "</svg>";
  }

 private:
  static Scale x_scale(const LineChart& chart) {
    std::vector<double> values;
    for (const Series& series : chart.series) {
      for (const Point& point : series.points) values.push_back(point.x);
    }
    return {values, /*logarithmic=*/false, /*whole_numbers=*/true};
  }

  static Scale y_scale(const LineChart& chart) {
    std::vector<double> values;
    for (const Series& series : chart.series) {
      for (const Point& point : thinned(series.points)) {
        if (std::isfinite(point.y)) values.push_back(point.y);
      }
    }
    if (chart.from_zero) values.push_back(0);
    bool logarithmic = false;
    if (chart.logarithmic && !values.empty()) {
      const auto [least, most] = std::minmax_element(values.begin(), values.end());
      logarithmic = *least > 0 && *most / *least >= kLogarithmicFrom;
    }
    return {values, logarithmic};
  }

  double x(double value) const { return plot::kLeft + x_.at(value) * (plot::kRight - plot::kLeft); }
  double y(double value) const {
    return plot::kBottom - y_.at(value) * (plot::kBottom - plot::kTop);
  }

  std::string axes() const {
    std::string text;
    for (const double tick : y_.ticks()) {
      text += plot::grid_line(y(tick), tick_text(tick, chart_.y_format));
    }
    for (const double tick : x_.ticks()) {
      text += plot::x_tick(x(tick), tick_text(tick, AxisFormat::kDecimal));
    }
    return text + plot::x_axis(chart_.x_name);
  }

  std::string line(const Series& series) const {
    const std::vector<Point> points = thinned(series.points);
    std::string path;
    bool pen_down = false;
    for (const Point& point : points) {
      if (is_finite(point)) {
        path += fmt::format("{}{:.1f} {:.1f}", pen_down ? 'L' : 'M', x(point.x), y(point.y));
      }
      pen_down = is_finite(point);
    }
    std::string text = fmt::format(R"(<path class="line c{}{}" d="{}"/>)", series.colour,
                                   series.faint ? " faint" : "", path);
    if (!series.faint && points.size() <= kMaxDots) text += dots(series, points);
    return text;
  }

  /// With what a mouse that rests on them shows.
  std::string dots(const Series& series, const std::vector<Point>& points) const {
    std::string text;
    for (const Point& point : points) {
      if (!is_finite(point)) continue;
      text += fmt::format(
          R"(<circle class="dot c{}" cx="{:.1f}" cy="{:.1f}" r="2.5"><title>{}, {} {}: {}</title></circle>)",
          series.colour, x(point.x), y(point.y), escape_html(series.name),
          escape_html(chart_.x_name), tick_text(point.x, AxisFormat::kDecimal),
          value_text(point.y, chart_.y_format));
    }
    return text;
  }

  /// "Accuracy by epoch. test: from 91.20 % (epoch 1) to 99.02 % (epoch 10), …".
  std::string description() const {
    std::string text = chart_.title + " by " + chart_.x_name + ".";
    for (const Series& series : chart_.series) {
      if (series.faint || series.points.empty()) continue;
      const Point& first = series.points.front();
      const Point& last = series.points.back();
      text += fmt::format(" {}: from {} ({} {}) to {} ({} {}).", series.name,
                          value_text(first.y, chart_.y_format), chart_.x_name, first.x,
                          value_text(last.y, chart_.y_format), chart_.x_name, last.x);
    }
    return text;
  }

  const LineChart& chart_;
  Scale x_;
  Scale y_;
};

std::string legend(const LineChart& chart) {
  std::string text;
  for (const Series& series : chart.series) {
    if (series.faint) continue;
    text += "<li>" + plot::line_key(series.colour) + escape_html(series.name) + "</li>";
  }
  return "<ul class=\"legend\">" + text + "</ul>";
}

}  // namespace

std::string line_chart(const LineChart& chart) {
  const bool any = std::any_of(chart.series.begin(), chart.series.end(), [](const Series& series) {
    return std::any_of(series.points.begin(), series.points.end(), is_finite);
  });
  if (!any) return "";
  return "<figure class=\"chart\"><figcaption>" + escape_html(chart.title) + "</figcaption>" +
         legend(chart) + Drawing(chart).svg() + "</figure>\n";
}

std::vector<Point> smoothed(const std::vector<Point>& points, double window) {
  std::vector<Point> result;
  double sum = 0;
  double weight = 0;
  const double keep = 1 - 1 / std::max(1.0, window);
  for (const Point& point : points) {
    if (!is_finite(point)) continue;
    sum = keep * sum + point.y;
    weight = keep * weight + 1;
    result.push_back({point.x, sum / weight});
  }
  return result;
}

}  // namespace mnist_train::report
