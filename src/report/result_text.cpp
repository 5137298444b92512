#include "report/result_text.h"

#include <spdlog/fmt/fmt.h>
#include <spdlog/fmt/ranges.h>

#include <algorithm>
#include <array>
#include <charconv>

#include "base/log.h"
#include "report/console.h"

namespace mnist_train::report {

namespace {

using Json = nlohmann::ordered_json;
using Sizes = std::vector<std::int64_t>;

/// Name, layer, output, parameters and multiply-adds of a module.
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

/// Aligns the columns, numbers to the right.
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

Json number_or_null(const std::optional<std::int64_t>& number) {
  return number ? Json(*number) : Json();
}

/// Returns the double whose shortest decimal form is that of the float.
double shortest(float value) {
  std::array<char, 32> text{};
  const auto end = std::to_chars(text.data(), text.data() + text.size(), value).ptr;
  double result = 0;
  std::from_chars(text.data(), end, result);
  return result;
}

std::size_t best_of(const std::vector<float>& scores) {
  return static_cast<std::size_t>(std::max_element(scores.begin(), scores.end()) - scores.begin());
}

bool has_names(const FilePrediction& prediction, const std::vector<std::string>& class_names) {
  return prediction.scores.size() == class_names.size();
}

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
                       {"multiply_adds", number_or_null(row.multiply_adds)}});
  }
  return {{"input", json_of(table.input)},
          {"modules", modules},
          {"parameters", table.parameters},
          {"multiply_adds", number_or_null(table.multiply_adds)}};
}

Json to_json(const FilePrediction& prediction, const std::vector<std::string>& class_names) {
  const std::size_t guess = best_of(prediction.scores);
  Json row = {{"file", prediction.file}, {"guess", guess}};
  if (has_names(prediction, class_names)) row["class"] = class_names[guess];
  row["scores"] = Json::array();
  for (const float score : prediction.scores) row["scores"].push_back(shortest(score));
  return row;
}

std::string to_text(const FilePrediction& prediction, const std::vector<std::string>& class_names) {
  const auto likely = [&](std::size_t label) {
    const std::string name =
        has_names(prediction, class_names) ? class_names[label] : std::to_string(label);
    return fmt::format("{} ({:.1f} %)", on_one_line(name), 100 * prediction.scores[label]);
  };
  const std::size_t guess = best_of(prediction.scores);
  std::string text = on_one_line(prediction.file) + ": " + likely(guess);
  if (prediction.scores.size() > 1) {
    std::vector<float> others = prediction.scores;
    others[guess] = -1;
    text += ", then " + likely(best_of(others));
  }
  return text + "\n";
}

std::string evaluation_text(double loss, double accuracy, std::int64_t samples) {
  return fmt::format("test accuracy  {:.2f} % of {} images\ntest loss      {:.4f}\n",
                     100 * accuracy, with_thousands(samples), loss);
}

}  // namespace mnist_train::report
