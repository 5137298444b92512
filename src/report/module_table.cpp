#include "report/module_table.h"

#include <spdlog/fmt/fmt.h>
#include <spdlog/fmt/ranges.h>

#include <algorithm>
#include <array>

#include "report/console.h"

namespace mnist_train::report {

namespace {

using Json = nlohmann::ordered_json;
using Sizes = std::vector<std::int64_t>;

/// The name of a module, its layer, its output, its parameters and its multiply-adds.
using Cells = std::array<std::string, 5>;
constexpr std::size_t kFirstNumber = 3;

std::string batch(const Sizes& sizes) {
  return sizes.empty() ? "" : fmt::format("[N,{}]", fmt::join(sizes, ","));
}

Cells cells_of(const ModuleRow& row) {
  const auto number = [&](std::int64_t value) {
    return row.is_container || value == 0 ? "" : with_thousands(value);
  };
  return {row.name, row.layer, batch(row.output), number(row.parameters),
          number(row.multiply_adds.value_or(0))};
}

/// Returns the lines with every column as wide as its longest text, numbers to the right.
std::string aligned(const std::vector<Cells>& lines) {
  std::array<std::size_t, std::tuple_size_v<Cells>> widths{};
  for (const Cells& cells : lines) {
    for (std::size_t i = 0; i < cells.size(); ++i) widths[i] = std::max(widths[i], cells[i].size());
  }
  std::string text;
  for (const Cells& cells : lines) {
    std::string line;
    for (std::size_t i = 0; i < cells.size(); ++i) {
      if (i > 0) line += "  ";
      line += i < kFirstNumber ? fmt::format("{:{}}", cells[i], widths[i])
                               : fmt::format("{:>{}}", cells[i], widths[i]);
    }
    line.erase(line.find_last_not_of(' ') + 1);
    text += line + "\n";
  }
  return text;
}

Json json_of(const Sizes& sizes) {
  if (sizes.empty()) return nullptr;
  Json json{"N"};
  for (const std::int64_t size : sizes) json.push_back(size);
  return json;
}

Json or_null(const std::optional<std::int64_t>& number) { return number ? Json(*number) : Json(); }

}  // namespace

std::string to_text(const ModuleTable& table) {
  std::vector<Cells> lines{{"name", "layer", "output", "parameters", "multiply-adds"},
                           {"", "images", batch(table.input), "", ""}};
  for (const ModuleRow& row : table.rows) lines.push_back(cells_of(row));
  lines.push_back({"", "sum", "", with_thousands(table.parameters),
                   table.multiply_adds ? with_thousands(*table.multiply_adds) : "–"});
  return aligned(lines);
}

Json to_json(const ModuleTable& table) {
  Json modules = Json::array();
  for (const ModuleRow& row : table.rows) {
    modules.push_back({{"name", row.name},
                       {"layer", row.layer},
                       {"output", json_of(row.output)},
                       {"parameters", row.parameters},
                       {"multiply_adds", or_null(row.multiply_adds)}});
  }
  return {{"input", json_of(table.input)},
          {"modules", modules},
          {"parameters", table.parameters},
          {"multiply_adds", or_null(table.multiply_adds)}};
}

}  // namespace mnist_train::report
