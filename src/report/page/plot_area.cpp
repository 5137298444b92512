#include "report/page/plot_area.h"

#include <spdlog/fmt/fmt.h>

#include "report/page/html.h"

namespace mnist_train::report::plot {

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

}  // namespace mnist_train::report::plot
