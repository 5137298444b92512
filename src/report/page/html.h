#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace mnist_train::report {

/// Returns text for HTML elements and quoted attributes: &, <, > and quotes as entities, control
/// characters and bytes that are not UTF-8 as U+FFFD.
std::string escape_html(std::string_view text);

// Numbers for people. Each function returns "–" for a number that is not finite.

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

// Tables. All cells are HTML.

/// Returns a cell of a table's head.
std::string head_cell(const std::string& html, const std::string& css_class = "");
std::string head_cells(const std::vector<std::string>& contents);

/// Returns a row of a table: a head cell, unless `head` is empty, and cells. In a table of the
/// class "stack" a phone shows the cells below one another, each behind its label.
std::string table_row(const std::string& head, const std::vector<std::string>& cells,
                      const std::vector<std::string>& labels = {});

struct HtmlTable {
  std::string css_class;
  std::string head;  // cells
  std::string rows;
};

std::string to_html(const HtmlTable& table);

/// Returns the table in a region called `label`, which scrolls where the table is wider than the
/// page.
std::string scrolling(const std::string& label, const HtmlTable& table);

}  // namespace mnist_train::report
