#include "report/page/line_chart.h"

#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <cmath>
#include <iterator>

#include "report/page/html.h"

namespace mnist_train::report {

namespace {

constexpr std::size_t kMaxPoints = 240;
constexpr std::size_t kMaxDots = 25;
constexpr double kLogarithmicFrom = 10;
constexpr double kWantedTicks = 5;

/// 1, 2 or 5 times a power of ten, at least `step`.
double round_up(double step) {
  const double power = std::pow(10.0, std::floor(std::log10(step)));
  for (const double factor : {1.0, 2.0, 5.0}) {
    if (factor * power >= step * (1 - 1e-9)) return factor * power;
  }
  return 10 * power;
}

bool is_finite(const ChartPoint& point) { return std::isfinite(point.x) && std::isfinite(point.y); }

std::vector<ChartPoint> thinned(const std::vector<ChartPoint>& points) {
  if (points.size() <= kMaxPoints) return points;
  std::vector<ChartPoint> result;
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
  if (format == AxisFormat::kPercent) return percent(value);
  return format == AxisFormat::kCount ? count(value) : decimal(value);
}

/// The value of a tick on an axis, which has little space.
std::string tick_text(double value, AxisFormat format) {
  if (format == AxisFormat::kPercent) return fmt::format("{:.4g} %", 100 * value);
  if (std::abs(value) < 1e-12) return "0";
  if (value >= 1e6) return fmt::format("{:.3g} M", value / 1e6);
  if (value >= 1e4) return fmt::format("{:.4g} k", value / 1e3);
  return fmt::format("{:.4g}", value);
}

class LineDrawing {
 public:
  explicit LineDrawing(const LineChart& chart)
      : chart_(chart), x_(x_scale(chart)), y_(y_scale(chart)) {}

  std::string svg() const {
    std::string text = plot::open_svg(description()) + axes();
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
    for (const double tick : y_.ticks()) {
      text += plot::grid_line(y(tick), tick_text(tick, chart_.y_format));
    }
    for (const double tick : x_.ticks()) {
      text += plot::x_tick(x(tick), tick_text(tick, AxisFormat::kDecimal));
    }
    return text + plot::x_axis(chart_.x_name);
  }

  std::string line(const ChartSeries& series) const {
    const std::vector<ChartPoint> points = thinned(series.points);
    std::string path;
    bool pen_down = false;
    for (const ChartPoint& point : points) {
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

std::string legend(const LineChart& chart) {
  std::string text;
  for (const ChartSeries& series : chart.series) {
    if (series.faint) continue;
    text += "<li>" + plot::line_key(series.colour) + escape_html(series.name) + "</li>";
  }
  return "<ul class=\"legend\">" + text + "</ul>";
}

}  // namespace

std::string line_chart(const LineChart& chart) {
  const bool any =
      std::any_of(chart.series.begin(), chart.series.end(), [](const ChartSeries& series) {
        return std::any_of(series.points.begin(), series.points.end(), is_finite);
      });
  if (!any) return "";
  return "<figure class=\"chart\"><figcaption>" + escape_html(chart.title) + "</figcaption>" +
         legend(chart) + LineDrawing(chart).svg() + "</figure>\n";
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

ChartScale::ChartScale(const std::vector<double>& values, bool logarithmic, bool whole_numbers)
    : logarithmic_(logarithmic), whole_numbers_(whole_numbers) {
  std::vector<double> finite;
  std::copy_if(values.begin(), values.end(), std::back_inserter(finite),
               [](double value) { return std::isfinite(value) && std::abs(value) < 1e300; });
  if (!finite.empty()) {
    const auto [least, most] = std::minmax_element(finite.begin(), finite.end());
    low_ = *least;
    high_ = *most;
  }
  logarithmic_ = logarithmic_ && low_ > 0;
  if (high_ - low_ <= 1e-12 * std::abs(high_)) {  // one value: in the middle
    const double margin = low_ == 0 ? 1 : std::abs(low_) * 0.1;
    high_ += margin;
    if (!logarithmic_) low_ -= low_ == 0 ? 0 : margin;
  }
  place_ticks();
}

double ChartScale::at(double value) const {
  if (logarithmic_) {
    return std::log(std::max(value, 1e-300) / low_) / std::log(high_ / low_);
  }
  return (value - low_) / (high_ - low_);
}

void ChartScale::place_ticks() {
  ticks_.clear();
  if (logarithmic_ && high_ / low_ >= 5) {
    place_logarithmic_ticks();
    if (ticks_.size() >= 2) return;
    ticks_.clear();
  }
  double step = round_up((high_ - low_) / kWantedTicks);
  if (whole_numbers_) step = std::max(step, 1.0);
  const double first = std::ceil(low_ / step - 1e-9);
  for (int i = 0; i < 20; ++i) {
    const double tick = (first + i) * step;
    if (tick > high_ + 1e-9 * step) break;
    ticks_.push_back(tick);
  }
}

void ChartScale::place_logarithmic_ticks() {
  const double decades = std::log10(high_ / low_);
  const std::vector<double> factors =
      decades > 4 ? std::vector<double>{1} : std::vector<double>{1, 2, 5};
  const int first = static_cast<int>(std::floor(std::log10(low_)));
  const int last = static_cast<int>(std::ceil(std::log10(high_)));
  const int stride = std::max(1, (last - first) / 6);
  for (int power = first; power <= last; power += decades > 4 ? stride : 1) {
    for (const double factor : factors) {
      const double tick = factor * std::pow(10.0, power);
      if (tick >= low_ * (1 - 1e-9) && tick <= high_ * (1 + 1e-9)) ticks_.push_back(tick);
    }
  }
}

namespace plot {

std::string open_svg(const std::string& description) {
  return fmt::format(R"(<svg viewBox="0 0 {} {}" role="img" aria-label="{}">)", kWidth, kHeight,
                     escape_html(description));
}

std::string grid_line(double y, const std::string& text) {
  return fmt::format(
      R"(<path class="grid" d="M{} {:.1f}H{}"/><text class="tick end" x="{}" y="{:.1f}">{}</text>)",
      kLeft, y, kRight, kLeft - 6, y + 4, text);
}

std::string x_tick(double x, const std::string& text) {
  return fmt::format(R"(<text class="tick mid" x="{:.1f}" y="{}">{}</text>)", x, kBottom + 15,
                     text);
}

std::string x_axis(const std::string& name) {
  return fmt::format(
      R"(<path class="axis" d="M{0} {1}H{2}"/><text class="tick mid" x="{3}" y="{4}">{5}</text>)",
      kLeft, kBottom, kRight, (kLeft + kRight) / 2, kHeight - 4, escape_html(name));
}

std::string line_key(int colour) {
  return fmt::format(
      R"(<svg class="key" viewBox="0 0 26 8" aria-hidden="true"><path class="line c{}" d="M1 4H25"/></svg>)",
      colour);
}

}  // namespace plot

}  // namespace mnist_train::report
