#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace mnist_train::report {

/// Escapes text for HTML elements and quoted attributes: &, <, > and quotes become entities,
/// control characters and invalid UTF-8 become U+FFFD.
std::string escape_html(std::string_view text);

// Numbers as text. Each function returns "–" for a number that is not finite.

/// Returns a fraction such as 0.9905 as "99.05 %".
std::string percent(double fraction, int digits = 2);
/// Returns "0.12 s", "78.7 s", "21 min 5 s" or "3 h 12 min".
std::string duration(double seconds);
/// Returns "12.3 ms" or "1.25 s".
std::string short_duration(double seconds);
/// Returns four significant digits: "0.03174", "1.2e-05".
std::string decimal(double value);
/// Returns "323 MB" or "1.5 GB", in powers of 1000.
std::string byte_size(double bytes);
/// Returns a rounded number with separators: "10,574".
std::string count(double number);
/// Returns seconds since 1970 as "2026-01-31 12:00:00 UTC".
std::string date_and_time(double seconds);

// Parts of a page. Apart from ids and classes, all arguments are HTML.

/// Returns a section with a heading, for links to `id`.
std::string section(const std::string& id, const std::string& heading, const std::string& content);

/// Returns a figure with a caption.
std::string figure(const std::string& caption, const std::string& content,
                   const std::string& css_class = "");

/// Returns a paragraph of the class "lead" or "soft".
std::string paragraph(const std::string& css_class, const std::string& text);

/// Returns a cell of a table's head.
std::string head_cell(const std::string& content, const std::string& css_class = "");
std::string head_cells(const std::vector<std::string>& contents);

/// Returns a row of a table. In tables of the class "stack", phones show the cells as a list, each
/// with its label.
std::string table_row(const std::string& head, const std::vector<std::string>& cells,
                      const std::vector<std::string>& labels = {});

/// Returns a table in a region called `label`, which scrolls if the table is wider than the page.
std::string scrolling_table(const std::string& label, const std::string& css_class,
                            const std::string& head, const std::string& rows);

}  // namespace mnist_train::report
