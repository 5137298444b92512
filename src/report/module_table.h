#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

namespace mnist_train::report {

/// One module of a network.
struct ModuleRow {
  std::string name;                  // before its tensors' names in a state_dict: "layer1.0.conv1"
  std::string layer;                 // its kind or class: "conv2d"
  std::vector<std::int64_t> output;  // for one image: [C,H,W] or [F]; empty where it is not known
  std::int64_t parameters = 0;
  std::optional<std::int64_t> multiply_adds;  // for one image, where they are known
  bool is_container = false;                  // it only has modules, whose rows have its numbers
};

/// What `describe` shows of a network.
struct ModuleTable {
  std::vector<std::int64_t> input;  // one image: [C,H,W]
  std::vector<ModuleRow> rows;
  std::int64_t parameters = 0;
  std::optional<std::int64_t> multiply_adds;  // for one image, if they are known
};

/// Returns a table for people: the images, a line for each module, the sums.
std::string to_text(const ModuleTable& table);

/// Returns {"input", "modules", "parameters", "multiply_adds"}; what is not known is null.
nlohmann::ordered_json to_json(const ModuleTable& table);

}  // namespace mnist_train::report
