#include "report/page/line_chart.h"

#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <cmath>

#include "report/page/chart_scale.h"
#include "report/page/html.h"

namespace mnist_train::report {

namespace {

constexpr std::size_t kMaxPoints = 1000;  // of a line
constexpr std::size_t kMaxDots = 25;
constexpr double kLogarithmicFrom = 10;

bool is_finite(const ChartPoint& point) { return std::isfinite(point.x) && std::isfinite(point.y); }

/// Keeps the first and the last point and, of each of as many buckets as there is space for, the
/// lowest and the highest one, so that no spike is lost.
std::vector<ChartPoint> thinned(const std::vector<ChartPoint>& points) {
  if (points.size() <= kMaxPoints) return points;
  constexpr std::size_t kBuckets = (kMaxPoints - 2) / 2;
  const std::size_t inner = points.size() - 2;
  std::vector<ChartPoint> result{points.front()};
  for (std::size_t bucket = 0; bucket < kBuckets; ++bucket) {
    std::size_t least = 1 + bucket * inner / kBuckets;
    std::size_t most = least;
    const std::size_t end = 1 + (bucket + 1) * inner / kBuckets;
    for (std::size_t i = least + 1; i < end; ++i) {
      if (!is_finite(points[i])) continue;
      if (!is_finite(points[least]) || points[i].y < points[least].y) least = i;
      if (!is_finite(points[most]) || points[i].y > points[most].y) most = i;
    }
    result.push_back(points[std::min(least, most)]);
    if (least != most) result.push_back(points[std::max(least, most)]);
  }
  result.push_back(points.back());
  return result;
}

std::string value_text(double value, AxisFormat format) {
  if (format == AxisFormat::kPercent) return percent(value);
  if (format == AxisFormat::kSeconds) return duration(value);
  return format == AxisFormat::kCount ? count(value) : decimal(value);
}

/// The value of a tick on an axis, which has little space.
std::string tick_text(double value, AxisFormat format, int digits = 4) {
  if (format == AxisFormat::kPercent) return fmt::format("{:.{}g} %", 100 * value, digits);
  if (std::abs(value) < 1e-12) return "0";
  if (value >= 1e6) return fmt::format("{:.3g} M", value / 1e6);
  if (value >= 1e4) return fmt::format("{:.4g} k", value / 1e3);
  return fmt::format("{:.{}g}", value, digits);
}

/// Returns the texts of an axis's ticks with so many digits that no two are alike.
std::vector<std::string> tick_texts(const std::vector<double>& ticks, AxisFormat format) {
  std::vector<std::string> texts;
  for (int digits = 4; digits <= 7; ++digits) {
    texts.clear();
    texts.reserve(ticks.size());
    for (const double tick : ticks) texts.push_back(tick_text(tick, format, digits));
    if (std::adjacent_find(texts.begin(), texts.end()) == texts.end()) break;
  }
  return texts;
}

class LineDrawing {
 public:
  explicit LineDrawing(const LineChart& chart)
      : chart_(chart), x_(x_scale(chart)), y_(y_scale(chart)) {}

  std::string svg() const {
    std::string text = plot::open_svg(description(), chart_.y_format, chart_.x_name) + axes();
    for (const ChartSeries& series : chart_.series) text += line(series);
    return text + "</svg>";
  }

 private:
  static ChartScale x_scale(const LineChart& chart) {
    std::vector<double> values;
    for (const ChartSeries& series : chart.series) {
      for (const ChartPoint& point : series.points) values.push_back(point.x);
    }
    return {values, /*logarithmic=*/false, /*whole_numbers=*/true};
  }

  static ChartScale y_scale(const LineChart& chart) {
    std::vector<double> values;
    for (const ChartSeries& series : chart.series) {
      for (const ChartPoint& point : thinned(series.points)) {
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
    const std::vector<std::string> texts = tick_texts(y_.ticks(), chart_.y_format);
    for (std::size_t i = 0; i < texts.size(); ++i) {
      text += plot::grid_line(y(y_.ticks()[i]), texts[i]);
    }
    for (const double tick : x_.ticks()) {
      text += plot::x_tick(x(tick), tick_text(tick, AxisFormat::kDecimal));
    }
    return text + plot::x_axis(chart_.x_name);
  }

  std::string line(const ChartSeries& series) const {
    const std::vector<ChartPoint> points = thinned(series.points);
    std::vector<plot::Reading> readings;
    for (const ChartPoint& point : points) {
      if (is_finite(point)) {
        readings.push_back({point, x(point.x), y(point.y)});
      } else if (!readings.empty()) {
        readings.back().is_last = true;
      }
    }
    if (series.faint) {
      return plot::path(fmt::format("line c{} faint", series.colour), readings, false);
    }
    std::string text = plot::path(fmt::format("line c{}", series.colour), readings, true);
    if (points.size() <= kMaxDots) text += dots(series, points);
    return text;
  }

  /// The points of the line, each with a text that a mouse over it shows.
  std::string dots(const ChartSeries& series, const std::vector<ChartPoint>& points) const {
    std::string text;
    for (const ChartPoint& point : points) {
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
    for (const ChartSeries& series : chart_.series) {
      if (series.faint || series.points.empty()) continue;
      const ChartPoint& first = series.points.front();
      const ChartPoint& last = series.points.back();
      text += fmt::format(" {}: from {} ({} {}) to {} ({} {}).", series.name,
                          value_text(first.y, chart_.y_format), chart_.x_name, first.x,
                          value_text(last.y, chart_.y_format), chart_.x_name, last.x);
    }
    return text;
  }

  const LineChart& chart_;
  ChartScale x_;
  ChartScale y_;
};

/// Returns the last finite point of a line, a gap where it has none.
ChartPoint last_of(const ChartSeries& series) {
  const auto last = std::find_if(series.points.rbegin(), series.points.rend(), is_finite);
  return last == series.points.rend() ? ChartPoint{NAN, NAN} : *last;
}

/// Returns whether there are two places to draw a line between.
bool has_a_line(const LineChart& chart) {
  double first = NAN;
  for (const ChartSeries& series : chart.series) {
    for (const ChartPoint& point : series.points) {
      if (!is_finite(point)) continue;
      if (std::isnan(first)) first = point.x;
      if (point.x != first) return true;
    }
  }
  return false;
}

}  // namespace

std::string line_chart(const LineChart& chart) {
  if (!has_a_line(chart)) return "";
  std::vector<plot::LegendEntry> legend;
  double last_x = NAN;
  for (const ChartSeries& series : chart.series) {
    const ChartPoint last = last_of(series);
    if (series.faint || !is_finite(last)) continue;
    legend.push_back(
        {plot::line_key(series.colour), series.name, value_text(last.y, chart.y_format)});
    last_x = std::fmax(last_x, last.x);
  }
  return plot::figure(chart.title, fmt::format("{} {}", chart.x_name, last_x), legend,
                      LineDrawing(chart).svg());
}

std::vector<ChartPoint> smoothed(const std::vector<ChartPoint>& points, double window) {
  std::vector<ChartPoint> result;
  double sum = 0;
  double weight = 0;
  const double keep = 1 - 1 / std::max(1.0, window);
  for (const ChartPoint& point : points) {
    if (!is_finite(point)) continue;
    sum = keep * sum + point.y;
    weight = keep * weight + 1;
    result.push_back({point.x, sum / weight});
  }
  return result;
}

}  // namespace mnist_train::report
