#pragma once

#include <cstdint>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "report/records.h"

namespace mnist_train::report {

/// Capabilities of a terminal.
struct TerminalStyle {
  bool colours = false;
  bool redraws = false;  // lines can be redrawn in place
};

/// Derives the style from environment variables: no colours if NO_COLOR is set and not empty
/// (no-color.org); neither colours nor redrawing if TERM is "dumb".
TerminalStyle terminal_style();

/// Returns a number with commas: "12,345".
std::string with_thousands(std::int64_t number);

/// Returns " of 3 (rare) to 1,200 (common) training images", nothing if the classes are not
/// unequal.
std::string class_sizes_text(const std::vector<std::int64_t>& sizes,
                             const std::vector<std::string>& class_names);

struct ConsoleSetup {
  bool quiet = false;
  bool is_terminal = false;  // draws a progress bar
  bool has_head = false;     // an earlier attempt has drawn the head of the table of epochs
  TerminalStyle style;
  int fd = 2;
  std::int64_t epochs = 0;
  std::int64_t steps_per_epoch = 0;
  std::optional<std::int64_t> max_steps;
  settings::BestBy best_by = settings::BestBy::kAccuracy;
  bool has_class_weights = false;
};

/// Makes the sink that shows progress. At the end of a run it warns of classes that the last
/// evaluation never predicted. On a terminal: a line with a bar and the remaining time,
/// redrawn at most ten times a second, and a table of epochs, both fitted to the terminal's current
/// width: a narrow terminal shows fewer columns, but whole ones. Elsewhere: plain lines, or nothing
/// if quiet.
std::unique_ptr<Sink> console_sink(const ConsoleSetup& setup);

/// A parameter of a module, and how it is trained.
struct ParameterRow {
  std::string name;  // in the module: "weight"
  bool frozen = false;
  double learning_rate = 0;  // the schedule's highest
  double weight_decay = 0;
};

/// Returns the parameter of these settings.
ParameterRow parameter_row(const std::string& name, const settings::ParameterSettings& kind,
                           const settings::TrainOptions& options);

/// One module of a network.
struct ModuleRow {
  std::string name;                  // prefix of its tensors in a state_dict: "layer1.0.conv1"
  std::string layer;                 // its kind or class: "conv2d"
  std::vector<std::int64_t> output;  // for one image: [C,H,W] or [F]; empty if unknown
  std::int64_t parameters = 0;
  std::optional<std::int64_t> multiply_adds;  // for one image, if known
  bool is_container = false;                  // its figures are those of its modules' rows
  std::vector<ParameterRow> own{};            // its parameters, without those of inner modules
};

struct ModuleTable {
  std::vector<std::int64_t> input;  // one image: [C,H,W]
  std::vector<ModuleRow> rows;
  std::int64_t parameters = 0;
  std::optional<std::int64_t> multiply_adds;  // for one image, if known
};

/// Returns the table as text: the images, a line for each module, the sums.
std::string to_text(const ModuleTable& table);

/// Returns {"input", "modules", "parameters", "multiply_adds"}; unknown values are null. The
/// "tensors" of a module have "name", "frozen" and, if they are trained, "learning_rate" and
/// "weight_decay".
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

/// Returns lines with the accuracies and the loss on the test set.
std::string to_text(const EvaluationFigures& test);

/// Returns the figures and `classes`: name (or number, if it has none), samples, precision, recall
/// and F1 of each. As in scikit-learn, a measure is 0 if it divides by 0.
nlohmann::ordered_json to_json(const EvaluationFigures& test,
                               const std::vector<std::string>& class_names);

}  // namespace mnist_train::report
