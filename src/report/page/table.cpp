#include "report/page/table.h"

namespace mnist_train::report {

std::string head_cell(const std::string& html, const std::string& look) {
  const std::string with_look = look.empty() ? "" : " class=\"" + look + '"';
  return "<th scope=\"col\"" + with_look + ">" + html + "</th>";
}

std::string head_cells(std::initializer_list<const char*> contents) {
  std::string cells;
  for (const char* content : contents) cells += head_cell(content);
  return cells;
}

std::string to_html(const Table& table) {
  return "<table class=\"" + table.look + "\"><thead><tr>" + table.head + "</tr></thead><tbody>" +
         table.rows + "</tbody></table>";
}

std::string scrolling(const std::string& label, const Table& table) {
  return "<div class=\"scroll\" tabindex=\"0\" role=\"region\" aria-label=\"" + label + "\">" +
         to_html(table) + "</div>";
}

}  // namespace mnist_train::report
