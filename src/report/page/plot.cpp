#include "report/page/plot.h"

#include <spdlog/fmt/fmt.h>

#include <array>

#include "report/page/html.h"

namespace mnist_train::report::plot {

std::string open_svg(const std::string& description, AxisFormat format, const std::string& x_name) {
  constexpr std::array kFormats{"percent", "decimal", "count", "seconds"};
  return fmt::format(
      R"(<svg viewBox="0 0 {} {}" role="img" aria-label="{}" data-format="{}" data-unit="{}">)",
      kWidth, kHeight, escape_html(description), kFormats.at(static_cast<std::size_t>(format)),
      escape_html(x_name));
}

std::string path(const std::string& css_class, const std::vector<Reading>& readings,
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

std::string figure(const std::string& title, const std::string& last_x,
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

std::string grid_line(double y, const std::string& text) {
  return fmt::format(
      R"(<path class="grid" d="M{} {:.1f}H{}"/><text class="tick end" x="{}" y="{:.1f}">{}</text>)",
      kLeft, y, kRight, kLeft - 6, y + 4, text);
}

std::string x_tick(double x, const std::string& text) {
  return fmt::format(R"(<text class="tick mid" x="{:.1f}" y="{}">{}</text>)", x, kBottom + 18,
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

}  // namespace mnist_train::report::plot
