#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

// Results of the commands `describe`, `predict` and `evaluate`, for people and for programs.
namespace mnist_train::report {

/// One module of a network.
struct ModuleRow {
  std::string name;                  // prefix of its tensors in a state_dict: "layer1.0.conv1"
  std::string layer;                 // its kind or class: "conv2d"
  std::vector<std::int64_t> output;  // for one image: [C,H,W] or [F]; empty if unknown
  std::int64_t parameters = 0;
  std::optional<std::int64_t> multiply_adds;  // for one image, if known
  bool is_container = false;                  // its figures are those of its modules' rows
};

struct ModuleTable {
  std::vector<std::int64_t> input;  // one image: [C,H,W]
  std::vector<ModuleRow> rows;
  std::int64_t parameters = 0;
  std::optional<std::int64_t> multiply_adds;  // for one image, if known
};

/// Returns the table as text: the images, a line for each module, the sums.
std::string to_text(const ModuleTable& table);

/// Returns {"input", "modules", "parameters", "multiply_adds"}; unknown values are null.
nlohmann::ordered_json to_json(const ModuleTable& table);

/// The prediction for one image file.
struct FilePrediction {
  std::string file;           // as named by the user
  std::vector<float> scores;  // probabilities by class, at least one
};

/// Returns {"file", "guess", "scores"}, with "class" after the guess if all classes have names.
nlohmann::ordered_json to_json(const FilePrediction& prediction,
                               const std::vector<std::string>& class_names);

/// Returns one line: the file and the two most likely classes with their probabilities, by name if
/// all classes have names.
std::string to_text(const FilePrediction& prediction, const std::vector<std::string>& class_names);

/// Returns lines with the accuracy and the loss on the test set.
std::string evaluation_text(double loss, double accuracy, std::int64_t samples);

}  // namespace mnist_train::report
