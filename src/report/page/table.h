#pragma once

#include <initializer_list>
#include <string>

namespace mnist_train::report {

/// A cell of a table's head. `html` is its content, `look` its class ("extra": not on a phone).
std::string head_cell(const std::string& html, const std::string& look = "");
std::string head_cells(std::initializer_list<const char*> contents);

/// A table as HTML, piece by piece.
struct Table {
  std::string look;  // the table's class
  std::string head;  // cells
  std::string rows;
};

std::string to_html(const Table& table);

/// The same where it may be wider than the page: it scrolls by itself, by keyboard, too. `label` is
/// what it is called.
std::string scrolling(const std::string& label, const Table& table);

}  // namespace mnist_train::report
