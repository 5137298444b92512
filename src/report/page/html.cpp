#include "report/page/html.h"

#include <spdlog/fmt/fmt.h>
#include <time.h>

#include <array>
#include <cmath>

#include "base/print.h"
#include "report/console.h"

namespace mnist_train::report {

namespace {

constexpr const char* kNotFinite = "–";
constexpr const char* kReplacement = "\xEF\xBF\xBD";

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
  const auto whole = static_cast<time_t>(seconds);
  tm parts{};
  ::gmtime_r(&whole, &parts);
  std::array<char, 64> text{};
  (void)std::strftime(text.data(), text.size(), "%Y-%m-%d %H:%M:%S UTC", &parts);
  return text.data();
}

std::string section(const std::string& id, const std::string& heading, const std::string& content) {
  return fmt::format("<section id=\"{}\"><h2>{}</h2>{}</section>\n", id, heading, content);
}

std::string figure(const std::string& caption, const std::string& content,
                   const std::string& css_class) {
  const std::string attribute = css_class.empty() ? "" : " class=\"" + css_class + "\"";
  return fmt::format("<figure{}><figcaption>{}</figcaption>{}</figure>\n", attribute, caption,
                     content);
}

std::string paragraph(const std::string& css_class, const std::string& text) {
  return fmt::format("<p class=\"{}\">{}</p>\n", css_class, text);
}

std::string head_cell(const std::string& content, const std::string& css_class) {
  const std::string attribute = css_class.empty() ? "" : " class=\"" + css_class + "\"";
  return fmt::format("<th scope=\"col\"{}>{}</th>", attribute, content);
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

}  // namespace mnist_train::report
