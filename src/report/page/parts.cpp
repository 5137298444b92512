#include <spdlog/fmt/chrono.h>
#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <ctime>
#include <iterator>
#include <set>

#include "base/print.h"
#include "report/console.h"
#include "report/page/sections.h"

namespace mnist_train::report {

namespace {

constexpr const char* kNotFinite = "–";
constexpr const char* kReplacement = "\xEF\xBF\xBD";

constexpr std::size_t kMaxPoints = 1000;  // of a line
constexpr std::size_t kMaxDots = 25;
constexpr double kWantedTicks = 5;
constexpr double kLogarithmicFrom = 10;  // factor between the extremes

bool is_finite(const ChartPoint& point) { return std::isfinite(point.x) && std::isfinite(point.y); }

/// Keeps the ends of a long line and the lowest and highest point of each of equal buckets.
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

/// A short form of a value, for ticks.
std::string tick_text(double value, AxisFormat format, int digits = 4) {
  if (format == AxisFormat::kPercent) return fmt::format("{:.{}g} %", 100 * value, digits);
  if (std::abs(value) < 1e-12) return "0";
  if (value >= 1e6) return fmt::format("{:.3g} M", value / 1e6);
  if (value >= 1e4) return fmt::format("{:.4g} k", value / 1e3);
  return fmt::format("{:.{}g}", value, digits);
}

/// Returns the texts of ticks with enough digits to tell them apart.
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

/// Rounds up to 1, 2 or 5 times a power of ten.
double round_up(double step) {
  const double power = std::pow(10.0, std::floor(std::log10(step)));
  for (const double factor : {1.0, 2.0, 5.0}) {
    if (factor * power >= step * (1 - 1e-9)) return factor * power;
  }
  return 10 * power;
}

/// The scale of one axis.
class ChartScale {
 public:
  /// Covers the finite ones of `values`, or 0 to 1 if there are none. A scale is logarithmic only
  /// if all values are positive and span a factor of ten.
  ChartScale(const std::vector<double>& values, bool logarithmic, bool whole_numbers = false) {
    std::vector<double> finite;
    std::copy_if(values.begin(), values.end(), std::back_inserter(finite),
                 [](double value) { return std::isfinite(value) && std::abs(value) < 1e300; });
    if (!finite.empty()) {
      low_ = std::ranges::min(finite);
      high_ = std::ranges::max(finite);
    }
    logarithmic_ = logarithmic && low_ > 0 && high_ / low_ >= kLogarithmicFrom;
    if (high_ - low_ <= 1e-12 * std::abs(high_)) {  // one value: in the middle
      const double margin = low_ == 0 ? 1 : std::abs(low_) * 0.1;
      high_ += margin;
      low_ -= low_ == 0 ? 0 : margin;
    }
    if (logarithmic_) add_logarithmic_ticks();
    if (ticks_.size() < 2) add_linear_ticks(whole_numbers);
  }

  /// Position of a value on the axis, in [0,1].
  double at(double value) const {
    if (logarithmic_) return std::log(std::max(value, 1e-300) / low_) / std::log(high_ / low_);
    return (value - low_) / (high_ - low_);
  }
  /// Round values on the axis, usually three to seven.
  const std::vector<double>& ticks() const { return ticks_; }
  double high() const { return high_; }

 private:
  void add_linear_ticks(bool whole_numbers) {
    double step = round_up((high_ - low_) / kWantedTicks);
    if (whole_numbers) step = std::max(step, 1.0);
    const double first = std::ceil(low_ / step - 1e-9);
    ticks_.clear();
    for (int i = 0; i < 20; ++i) {
      const double tick = (first + i) * step;
      if (tick > high_ + 1e-9 * step) break;
      ticks_.push_back(tick);
    }
  }

  void add_logarithmic_ticks() {
    const bool is_long = std::log10(high_ / low_) > 4;
    const std::vector<double> factors =
        is_long ? std::vector<double>{1} : std::vector{1.0, 2.0, 5.0};
    const int first = static_cast<int>(std::floor(std::log10(low_)));
    const int last = static_cast<int>(std::ceil(std::log10(high_)));
    const int stride = is_long ? std::max(1, (last - first) / 6) : 1;
    for (int power = first; power <= last; power += stride) {
      for (const double factor : factors) {
        const double tick = factor * std::pow(10.0, power);
        if (tick >= low_ * (1 - 1e-9) && tick <= high_ * (1 + 1e-9)) ticks_.push_back(tick);
      }
    }
  }

  bool logarithmic_ = false;
  double low_ = 0;
  double high_ = 1;
  std::vector<double> ticks_;
};

// Coordinates are about one pixel, so all charts have letters of the same size; y grows downwards.
constexpr double kWidth = 360;
constexpr double kHeight = 210;
constexpr double kLeft = 58;
constexpr double kRight = kWidth - 18;
constexpr double kTop = 10;
constexpr double kBottom = kHeight - 38;

/// The opening tag of a drawing with a description for screen readers.
std::string open_svg(const std::string& description, AxisFormat format, const std::string& x_name) {
  constexpr std::array kFormats{"percent", "decimal", "count", "seconds"};
  return fmt::format(
      R"(<svg viewBox="0 0 {} {}" role="img" aria-label="{}" data-format="{}" data-unit="{}">)",
      kWidth, kHeight, escape_html(description), kFormats.at(static_cast<std::size_t>(format)),
      escape_html(x_name));
}

/// A value and its position in the drawing.
struct Reading {
  ChartPoint point;
  double place_x = 0;
  double place_y = 0;
  bool is_last = false;  // before a gap
};

/// A line through the readings. A readable one carries their values: the n-th readable line belongs
/// to the n-th entry of the legend.
std::string svg_path(const std::string& css_class, const std::vector<Reading>& readings,
                     bool is_readable) {
  std::string drawing;
  std::string xs;
  std::string ys;
  bool pen_down = false;
  for (const Reading& reading : readings) {
    drawing +=
        fmt::format("{}{:.1f} {:.1f}", pen_down ? 'L' : 'M', reading.place_x, reading.place_y);
    pen_down = !reading.is_last;
    const char* comma = xs.empty() ? "" : ",";
    xs += fmt::format("{}{:.7g}", comma, reading.point.x);
    ys += fmt::format("{}{:.5g}", comma, reading.point.y);
  }
  const std::string values = is_readable ? fmt::format(R"( data-x="{}" data-y="{}")", xs, ys) : "";
  return fmt::format(R"(<path class="{}"{} d="{}"/>)", css_class, values, drawing);
}

/// An entry of a legend with its last value. The page's script shows the value at the cursor
/// instead.
struct LegendEntry {
  std::string key;  // a drawing
  std::string name;
  std::string value;
};

/// A chart's figure. `last_x` is the position on the horizontal axis of the legend's values.
std::string chart_figure(const std::string& title, const std::string& last_x,
                         const std::vector<LegendEntry>& legend, const std::string& svg) {
  std::string entries;
  for (const LegendEntry& entry : legend) {
    entries += fmt::format("<li>{}{} <b>{}</b></li>", entry.key, escape_html(entry.name),
                           escape_html(entry.value));
  }
  return fmt::format(
      "<figure class=\"chart\"><figcaption>{} <span class=\"at\">{}</span></figcaption>"
      "<ul class=\"legend\">{}</ul>{}</figure>\n",
      escape_html(title), escape_html(last_x), entries, svg);
}

/// A horizontal line with its value on the left.
std::string grid_line(double y, const std::string& text) {
  return fmt::format(
      R"(<path class="grid" d="M{} {:.1f}H{}"/><text class="tick end" x="{}" y="{:.1f}">{}</text>)",
      kLeft, y, kRight, kLeft - 6, y + 4, text);
}

/// A value below the horizontal axis.
std::string x_tick(double x, const std::string& text) {
  return fmt::format(R"(<text class="tick mid" x="{:.1f}" y="{}">{}</text>)", x, kBottom + 18,
                     text);
}

/// The horizontal axis with its name.
std::string x_axis(const std::string& name) {
  return fmt::format(
      R"(<path class="axis" d="M{0} {1}H{2}"/><text class="tick mid" x="{3}" y="{4}">{5}</text>)",
      kLeft, kBottom, kRight, (kLeft + kRight) / 2, kHeight - 4, escape_html(name));
}

class LineDrawing {
 public:
  explicit LineDrawing(const LineChart& chart)
      : chart_(chart),
        x_(values_of(chart, &ChartPoint::x, false), /*logarithmic=*/false, /*whole_numbers=*/true),
        y_(values_of(chart, &ChartPoint::y, chart.from_zero), chart.logarithmic) {}

  std::string svg() const {
    std::string text = open_svg(description(), chart_.y_format, chart_.x_name) + axes();
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
    const std::vector<std::string> texts = tick_texts(y_.ticks(), chart_.y_format);
    for (std::size_t i = 0; i < texts.size(); ++i) {
      text += grid_line(y(y_.ticks()[i]), texts[i]);
    }
    for (const double tick : x_.ticks()) {
      text += x_tick(x(tick), tick_text(tick, AxisFormat::kDecimal));
    }
    return text + x_axis(chart_.x_name);
  }

  std::string line(const ChartSeries& series) const {
    const std::vector<ChartPoint> points = thinned(series.points);
    std::vector<Reading> readings;
    for (const ChartPoint& point : points) {
      if (is_finite(point)) {
        readings.push_back({point, x(point.x), y(point.y)});
      } else if (!readings.empty()) {
        readings.back().is_last = true;
      }
    }
    const char* faint = series.faint ? " faint" : "";
    std::string text =
        svg_path(fmt::format("line c{}{}", series.colour, faint), readings, !series.faint);
    if (series.faint || points.size() > kMaxDots) return text;
    for (const auto& [point, place_x, place_y, is_last] : readings) {  // dots with tooltips
      text += fmt::format(
          R"(<circle class="dot c{}" cx="{:.1f}" cy="{:.1f}" r="2.5"><title>{}, {} {}: {}</title></circle>)",
          series.colour, place_x, place_y, escape_html(series.name), escape_html(chart_.x_name),
          tick_text(point.x, AxisFormat::kDecimal), value_text(point.y, chart_.y_format));
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

std::string column_svg(const ChartColumn& column, double x, double width, double scale) {
  std::string text;
  double base_y = kBottom;
  for (std::size_t a = 0; a < column.parts.size(); ++a) {
    const double height = column.parts[a] * scale;
    if (height < 0.05) continue;
    base_y -= height;
    text +=
        fmt::format(R"(<rect class="a{}" x="{:.1f}" y="{:.1f}" width="{:.1f}" height="{:.1f}"/>)",
                    a, x, base_y, width, height);
  }
  return text;
}

/// Returns the last finite point of a line, else a gap.
ChartPoint last_of(const ChartSeries& series) {
  const auto last = std::find_if(series.points.rbegin(), series.points.rend(), is_finite);
  return last == series.points.rend() ? ChartPoint{NAN, NAN} : *last;
}

std::string class_attribute(const std::string& css_class) {
  return css_class.empty() ? "" : " class=\"" + css_class + "\"";
}

/// Whether two points differ in x.
bool has_a_line(const LineChart& chart) {
  std::set<double> places;
  for (const ChartSeries& series : chart.series) {
    for (const ChartPoint& point : series.points) {
      if (is_finite(point) && places.insert(point.x).second && places.size() > 1) return true;
    }
  }
  return false;
}

}  // namespace

std::string escape_html(std::string_view text) {
  constexpr std::string_view kSpecial = "&<>\"'";
  constexpr std::array kEntities{"&amp;", "&lt;", "&gt;", "&quot;", "&#39;"};
  std::string escaped;
  escaped.reserve(text.size() + text.size() / 8);
  while (!text.empty()) {
    const std::size_t length = first_character(text).size;
    const char first = text[0];
    const bool control =
        (first >= 0 && first < 0x20 && first != '\n' && first != '\t') || first == 0x7f;
    if (length == 0 || control) {
      escaped += kReplacement;
    } else if (const std::size_t at = kSpecial.find(first); at != std::string_view::npos) {
      escaped += kEntities[at];
    } else {
      escaped += text.substr(0, length);
    }
    text.remove_prefix(length == 0 ? 1 : length);
  }
  return escaped;
}

std::string percent(double fraction, int digits) {
  return std::isfinite(fraction) ? fmt::format("{:.{}f} %", 100 * fraction, digits) : kNotFinite;
}

std::string duration(double seconds) {
  if (!std::isfinite(seconds)) return kNotFinite;
  if (seconds < 10) return fmt::format("{:.2f} s", seconds);
  if (seconds < 119.5) return fmt::format("{:.1f} s", seconds);
  const std::int64_t whole = std::llround(seconds);
  if (whole < 3600) return fmt::format("{} min {} s", whole / 60, whole % 60);
  return fmt::format("{} h {} min", whole / 3600, whole % 3600 / 60);
}

std::string short_duration(double seconds) {
  if (!std::isfinite(seconds)) return kNotFinite;
  return seconds < 1 ? fmt::format("{:.3g} ms", 1000 * seconds) : fmt::format("{:.3g} s", seconds);
}

std::string decimal(double value) {
  return std::isfinite(value) ? fmt::format("{:.4g}", value) : kNotFinite;
}

std::string byte_size(double bytes) {
  if (!std::isfinite(bytes)) return kNotFinite;
  return bytes < 1e9 ? fmt::format("{:.0f} MB", bytes / 1e6)
                     : fmt::format("{:.1f} GB", bytes / 1e9);
}

std::string count(double number) {
  if (!std::isfinite(number) || std::abs(number) > 9e15) return kNotFinite;
  return with_thousands(std::llround(number));
}

std::string date_and_time(double seconds) {
  if (!std::isfinite(seconds) || std::abs(seconds) > 1e11) return kNotFinite;
  return fmt::format("{:%Y-%m-%d %H:%M:%S UTC}", fmt::gmtime(static_cast<std::time_t>(seconds)));
}

std::string section(const std::string& id, const std::string& heading, const std::string& content) {
  return fmt::format("<section id=\"{}\"><h2>{}</h2>{}</section>\n", id, heading, content);
}

std::string figure(const std::string& caption, const std::string& content,
                   const std::string& css_class) {
  return fmt::format("<figure{}><figcaption>{}</figcaption>{}</figure>\n",
                     class_attribute(css_class), caption, content);
}

std::string paragraph(const std::string& css_class, const std::string& text) {
  return fmt::format("<p class=\"{}\">{}</p>\n", css_class, text);
}

std::string head_cell(const std::string& content, const std::string& css_class) {
  return fmt::format("<th scope=\"col\"{}>{}</th>", class_attribute(css_class), content);
}

std::string head_cells(const std::vector<std::string>& contents) {
  std::string cells;
  for (const std::string& content : contents) cells += head_cell(content);
  return cells;
}

std::string table_row(const std::string& head, const std::vector<std::string>& cells,
                      const std::vector<std::string>& labels) {
  std::string row = "<tr><th scope=\"row\">" + head + "</th>";
  for (std::size_t i = 0; i < cells.size(); ++i) {
    row += labels.empty() ? "<td>" : "<td data-label=\"" + labels.at(i) + "\">";
    row += cells[i] + "</td>";
  }
  return row + "</tr>\n";
}

std::string scrolling_table(const std::string& label, const std::string& css_class,
                            const std::string& head, const std::string& rows) {
  return fmt::format(
      "<div class=\"scroll\" tabindex=\"0\" role=\"region\" aria-label=\"{}\"><table "
      "class=\"{}\"><thead><tr>{}</tr></thead><tbody>{}</tbody></table></div>",
      label, css_class, head, rows);
}

std::string line_chart(const LineChart& chart) {
  if (!has_a_line(chart)) return "";
  std::vector<LegendEntry> legend;
  double last_x = NAN;
  for (const ChartSeries& series : chart.series) {
    const ChartPoint last = last_of(series);
    if (series.faint || !is_finite(last)) continue;
    legend.push_back({line_key(series.colour), series.name, value_text(last.y, chart.y_format)});
    last_x = std::fmax(last_x, last.x);
  }
  return chart_figure(chart.title, fmt::format("{} {}", chart.x_name, last_x), legend,
                      LineDrawing(chart).svg());
}

std::string column_chart(const std::string& title, const std::string& x_name,
                         std::span<const char* const> part_names,
                         const std::vector<ChartColumn>& columns) {
  if (columns.empty()) return "";
  std::vector<double> totals{0};
  for (const ChartColumn& column : columns) totals.push_back(total(column.parts));
  const ChartScale y(totals, /*logarithmic=*/false);
  const double scale = (kBottom - kTop) / std::max(1e-9, y.high());
  std::string text = open_svg(
      fmt::format("{}: from {} to {}", title, duration(totals[1]), duration(totals.back())),
      AxisFormat::kSeconds, x_name);
  for (const double tick : y.ticks()) {
    text += grid_line(kBottom - tick * scale, fmt::format("{:.3g} s", tick));
  }
  const double slot = (kRight - kLeft) / static_cast<double>(columns.size());
  const double width = std::min(slot * 0.8, 40.0);
  const std::size_t labelled = (columns.size() + 9) / 10;
  std::vector<double> places;
  for (std::size_t i = 0; i < columns.size(); ++i) {
    places.push_back(kLeft + (static_cast<double>(i) + 0.5) * slot);
    text += column_svg(columns[i], places[i] - width / 2, width, scale);
    if (i % labelled == 0) text += x_tick(places[i], std::to_string(columns[i].x));
  }
  text += x_axis(x_name);
  std::vector<LegendEntry> legend;
  // Invisible lines carry the readings.
  const auto add_readings = [&](const std::string& key, const char* name, const auto& seconds) {
    std::vector<Reading> readings;
    for (std::size_t i = 0; i < columns.size(); ++i) {
      readings.push_back({{static_cast<double>(columns[i].x), seconds(columns[i])},
                          places[i],
                          kBottom - totals[i + 1] * scale});
    }
    text += svg_path("unseen", readings, /*is_readable=*/true);
    legend.push_back({key, name, duration(seconds(columns.back()))});
  };
  add_readings("", "total", [](const ChartColumn& column) { return total(column.parts); });
  for (std::size_t part = 0; part < part_names.size(); ++part) {
    const auto seconds = [part](const ChartColumn& column) { return column.parts[part]; };
    if (seconds(*std::ranges::max_element(columns, {}, seconds)) < kShownSeconds) continue;
    add_readings(square_key(part), part_names[part], seconds);
  }
  return chart_figure(title, fmt::format("{} {}", x_name, columns.back().x), legend,
                      text + "</svg>");
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

std::string square_key(std::size_t part) {
  return fmt::format(
      R"(<svg class="key square" viewBox="0 0 10 10" aria-hidden="true"><rect class="a{}" width="10" height="10"/></svg>)",
      part);
}

}  // namespace mnist_train::report
