#include <spdlog/fmt/chrono.h>
#include <spdlog/fmt/fmt.h>

#include <cmath>
#include <ctime>

#include "base/print.h"
#include "report/page/sections.h"

namespace mnist_train::report {

namespace {

constexpr const char* kNotFinite = "–";

constexpr std::size_t kMaxPoints = 1000;  // per line
constexpr std::size_t kMaxDots = 25;
constexpr double kTargetTicks = 5;
constexpr double kLogarithmicFrom = 10;  // minimum ratio of the largest to the smallest value

bool is_finite(const ChartPoint& point) { return std::isfinite(point.x) && std::isfinite(point.y); }

/// Thins a long line to its two ends and the lowest and highest points of many equal buckets.
std::vector<ChartPoint> thinned(const std::vector<ChartPoint>& points) {
  if (points.size() <= kMaxPoints) return points;
  constexpr std::size_t kBuckets = (kMaxPoints - 2) / 2;
  const std::size_t inner = points.size() - 2;
  std::vector<ChartPoint> result{points.front()};
  for (std::size_t bucket = 0; bucket < kBuckets; ++bucket) {
    std::size_t lowest = 1 + bucket * inner / kBuckets;
    std::size_t highest = lowest;
    const std::size_t end = 1 + (bucket + 1) * inner / kBuckets;
    for (std::size_t i = lowest + 1; i < end; ++i) {
      if (!is_finite(points[i])) continue;
      if (!is_finite(points[lowest]) || points[i].y < points[lowest].y) lowest = i;
      if (!is_finite(points[highest]) || points[i].y > points[highest].y) highest = i;
    }
    result.push_back(points[std::min(lowest, highest)]);
    if (lowest != highest) result.push_back(points[std::max(lowest, highest)]);
  }
  result.push_back(points.back());
  return result;
}

std::string value_text(double value, AxisFormat format) {
  if (format == AxisFormat::kPercent) return percent(value);
  return format == AxisFormat::kCount ? count(value) : decimal(value);
}

std::string tick_text(double value, AxisFormat format) {
  if (std::abs(value) < 1e-12) value = 0;  // otherwise "-0" is possible
  if (format == AxisFormat::kPercent) return fmt::format("{:.7g} %", 100 * value);
  if (value >= 1e9) return fmt::format("{:.3g}", value);
  if (value >= 1e6) return fmt::format("{:.3g} M", value / 1e6);
  if (value >= 1e4) return fmt::format("{:.4g} k", value / 1e3);
  return fmt::format("{:.7g}", value);
}

/// Rounds up to 1, 2 or 5 times a power of ten.
double round_up(double step) {
  const double power = std::pow(10.0, std::floor(std::log10(step)));
  for (const double factor : {1.0, 2.0, 5.0}) {
    if (factor * power >= step * (1 - 1e-9)) return factor * power;
  }
  return 10 * power;
}

/// Maps values to positions on an axis, and chooses the ticks.
class ChartScale {
 public:
  /// Covers the finite `values`, or 0 to 1 if there are none. A requested logarithmic scale is used
  /// only if all values are positive and span a factor of ten or more.
  ChartScale(std::vector<double> values, bool logarithmic, bool whole_numbers = false) {
    std::erase_if(values, [](double value) { return !(std::abs(value) < 1e300); });
    if (!values.empty()) {
      low_ = std::ranges::min(values);
      high_ = std::ranges::max(values);
    }
    logarithmic_ = logarithmic && low_ > 0 && high_ / low_ >= kLogarithmicFrom;
    if (high_ - low_ <= 1e-12 * std::abs(high_)) {  // a single value is centred unless it is 0
      const double margin = low_ == 0 ? 1 : std::abs(low_) * 0.1;
      high_ += margin;
      low_ -= low_ == 0 ? 0 : margin;
    }
    if (logarithmic_) add_logarithmic_ticks();
    if (ticks_.size() < 2) add_linear_ticks(whole_numbers);
  }

  /// Returns the position of a value on the axis, in [0,1].
  double at(double value) const {
    if (logarithmic_) return std::log(std::max(value, 1e-300) / low_) / std::log(high_ / low_);
    return (value - low_) / (high_ - low_);
  }
  /// Returns round values on the axis, usually three to seven.
  const std::vector<double>& ticks() const { return ticks_; }

 private:
  void add_linear_ticks(bool whole_numbers) {
    double step = round_up((high_ - low_) / kTargetTicks);
    if (whole_numbers) step = std::max(step, 1.0);
    ticks_.clear();
    for (double i = std::ceil(low_ / step - 1e-9); i * step <= high_ + 1e-9 * step; ++i) {
      ticks_.push_back(i * step);
    }
  }

  void add_logarithmic_ticks() {
    const double powers = std::log10(high_ / low_);
    const auto stride = std::max(1, static_cast<int>(powers / 6));
    for (auto power = static_cast<int>(std::floor(std::log10(low_))); power <= 308;
         power += stride) {
      for (const double factor : {1, 2, 5}) {
        const double tick = factor * std::pow(10.0, power);
        if (tick > high_ * (1 + 1e-9)) return;
        if (tick >= low_ * (1 - 1e-9) && (factor == 1 || powers <= 4)) ticks_.push_back(tick);
      }
    }
  }

  bool logarithmic_ = false;
  double low_ = 0;
  double high_ = 1;
  std::vector<double> ticks_;
};

// One unit is about one pixel, so text has the same size in all charts. y grows downwards.
constexpr double kWidth = 360;
constexpr double kHeight = 210;
constexpr double kLeft = 58;
constexpr double kRight = kWidth - 18;
constexpr double kTop = 10;
constexpr double kBottom = kHeight - 38;

class LineDrawing {
 public:
  explicit LineDrawing(const LineChart& chart)
      : chart_(chart),
        x_(values_of(chart, &ChartPoint::x, false), /*logarithmic=*/false, /*whole_numbers=*/true),
        y_(values_of(chart, &ChartPoint::y, chart.y_scale == AxisScale::kFromZero),
           chart.y_scale == AxisScale::kLogarithmic) {}

  std::string svg() const {
    constexpr std::array kFormats{"percent", "decimal", "count"};
    std::string text = fmt::format(
        R"(<svg viewBox="0 0 {} {}" role="img" aria-label="{}" data-format="{}" data-unit="{}">)",
        kWidth, kHeight, escape_html(chart_.title),
        kFormats.at(static_cast<std::size_t>(chart_.y_format)), escape_html(chart_.x_name));
    text += axes();
    for (const ChartSeries& series : chart_.series) text += line(series);
    return text + "</svg>";
  }

 private:
  static std::vector<double> values_of(const LineChart& chart, double ChartPoint::*coordinate,
                                       bool from_zero) {
    std::vector<double> values(from_zero ? 1 : 0);
    for (const ChartSeries& series : chart.series) {
      for (const ChartPoint& point : series.points) values.push_back(point.*coordinate);
    }
    return values;
  }

  double x(double value) const { return kLeft + x_.at(value) * (kRight - kLeft); }
  double y(double value) const { return kBottom - y_.at(value) * (kBottom - kTop); }

  std::string axes() const {
    std::string text;
    for (const double tick : y_.ticks()) {
      text += fmt::format(
          R"(<path class="grid" d="M{} {:.1f}H{}"/><text class="tick end" x="{}" y="{:.1f}">{}</text>)",
          kLeft, y(tick), kRight, kLeft - 6, y(tick) + 4, tick_text(tick, chart_.y_format));
    }
    for (const double tick : x_.ticks()) {
      text += fmt::format(R"(<text class="tick mid" x="{:.1f}" y="{}">{}</text>)", x(tick),
                          kBottom + 18, tick_text(tick, AxisFormat::kDecimal));
    }
    return text +
           fmt::format(
               R"(<path class="axis" d="M{0} {1}H{2}"/><text class="tick mid" x="{3}" y="{4}">{5}</text>)",
               kLeft, kBottom, kRight, (kLeft + kRight) / 2, kHeight - 4,
               escape_html(chart_.x_name));
  }

  /// Returns a line. Unless faint, it has dots with tooltips if there are few points, and data
  /// attributes with its values; the n-th such line belongs to the n-th legend entry.
  std::string line(const ChartSeries& series) const {
    const std::vector<ChartPoint> points = thinned(series.points);
    std::string drawing;
    std::string xs;
    std::string ys;
    std::string dots;
    char pen = 'M';
    for (const ChartPoint& point : points) {
      if (!is_finite(point)) {
        pen = 'M';
        continue;
      }
      drawing += fmt::format("{}{:.1f} {:.1f}", std::exchange(pen, 'L'), x(point.x), y(point.y));
      const char* comma = xs.empty() ? "" : ",";
      xs += fmt::format("{}{:.7g}", comma, point.x);
      ys += fmt::format("{}{:.5g}", comma, point.y);
      if (points.size() > kMaxDots) continue;
      dots += fmt::format(
          R"(<circle class="dot c{}" cx="{:.1f}" cy="{:.1f}" r="2.5"><title>{}, {} {}: {}</title></circle>)",
          series.colour, x(point.x), y(point.y), escape_html(series.name),
          escape_html(chart_.x_name), tick_text(point.x, AxisFormat::kDecimal),
          value_text(point.y, chart_.y_format));
    }
    if (series.faint) {
      return fmt::format(R"(<path class="line c{} faint" d="{}"/>)", series.colour, drawing);
    }
    return fmt::format(R"(<path class="line c{}" data-x="{}" data-y="{}" d="{}"/>{})",
                       series.colour, xs, ys, drawing, dots);
  }

  const LineChart& chart_;
  ChartScale x_;
  ChartScale y_;
};

/// Returns whether two finite points differ in x.
bool has_line(const LineChart& chart) {
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

std::string escape_html(std::string_view text) {
  constexpr std::string_view kSpecial = "&<>\"'";
  constexpr std::array kEntities{"&amp;", "&lt;", "&gt;", "&quot;", "&#39;"};
  std::string escaped;
  for (const char byte : escape_control_bytes(text)) {
    const std::size_t at = kSpecial.find(byte);
    escaped += at == kSpecial.npos ? std::string(1, byte) : kEntities[at];
  }
  return escaped;
}

std::string percent(double fraction, int digits) {
  return std::isfinite(fraction) ? fmt::format("{:.{}f} %", 100 * fraction, digits) : kNotFinite;
}

std::string duration(double seconds) {
  if (!std::isfinite(seconds)) return kNotFinite;
  if (seconds < 119.5) return fmt::format("{:.{}f} s", seconds, seconds < 10 ? 2 : 1);
  const std::int64_t rounded = std::llround(seconds);
  if (rounded < 3600) return fmt::format("{} min {} s", rounded / 60, rounded % 60);
  return fmt::format("{} h {} min", rounded / 3600, rounded % 3600 / 60);
}

std::string decimal(double value) {
  return std::isfinite(value) ? fmt::format("{:.4g}", value) : kNotFinite;
}

std::string count(double number) {
  return std::abs(number) < 9e15 ? with_thousands(std::llround(number)) : kNotFinite;
}

std::string date_and_time(double seconds) {
  if (!(std::abs(seconds) < 1e11)) return kNotFinite;
  return fmt::format("{:%Y-%m-%d %H:%M:%S UTC}", fmt::gmtime(static_cast<std::time_t>(seconds)));
}

std::string section(const std::string& id, const std::string& heading, const std::string& content) {
  return fmt::format("<section id=\"{}\"><h2>{}</h2>{}</section>\n", id, heading, content);
}

std::string figure(const std::string& caption, const std::string& content) {
  return fmt::format("<figure><figcaption>{}</figcaption>{}</figure>\n", caption, content);
}

std::string paragraph(const std::string& css_class, const std::string& text) {
  return fmt::format("<p class=\"{}\">{}</p>\n", css_class, text);
}

std::string scrolling_table(const std::string& label, const std::string& css_class,
                            const std::string& head, const std::string& rows) {
  return fmt::format(
      "<div class=\"scroll\" tabindex=\"0\" role=\"region\" aria-label=\"{}\"><table "
      "class=\"{}\"><thead><tr>{}</tr></thead><tbody>{}</tbody></table></div>",
      label, css_class, head, rows);
}

void Table::add(const std::vector<std::string>& cells) {
  const bool is_stack = css_class.ends_with("stack");
  rows += "<tr><th scope=\"row\">" + cells.front() + "</th>";
  for (std::size_t i = 1; i < cells.size(); ++i) {
    rows += (is_stack ? "<td data-label=\"" + heads[i] + "\">" : "<td>") + cells[i] + "</td>";
  }
  rows += "</tr>\n";
}

std::string Table::html() const {
  if (rows.empty()) return "";
  std::string head;
  for (const std::string& cell : heads) head += "<th scope=\"col\">" + cell + "</th>";
  return scrolling_table(label, css_class, head, rows);
}

std::string line_chart(const LineChart& chart) {
  if (!has_line(chart)) return "";
  std::string legend;
  double last_x = NAN;
  for (const ChartSeries& series : chart.series) {
    const auto last = std::find_if(series.points.rbegin(), series.points.rend(), is_finite);
    if (series.faint || last == series.points.rend()) continue;
    // The page's script shows the value at the cursor instead.
    legend += fmt::format("<li>{}{} <b>{}</b></li>", line_key(series.colour),
                          escape_html(series.name), value_text(last->y, chart.y_format));
    last_x = std::fmax(last_x, last->x);
  }
  return fmt::format(
      "<figure class=\"chart\"><figcaption>{} <span class=\"at\">{} {}</span></figcaption>"
      "<ul class=\"legend\">{}</ul>{}</figure>\n",
      escape_html(chart.title), escape_html(chart.x_name), last_x, legend,
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

std::string line_key(int colour) {
  return fmt::format(
      R"(<svg class="key" viewBox="0 0 26 8" aria-hidden="true"><path class="line c{}" d="M1 4H25"/></svg>)",
      colour);
}

}  // namespace mnist_train::report
