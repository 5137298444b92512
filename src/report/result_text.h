#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace mnist_train::report {

/// What a model says of an image file.
struct FilePrediction {
  std::string file;           // as it was named
  std::vector<float> scores;  // probabilities by class, at least one
};

/// Returns {"file", "guess", "scores"}, and "class" behind the guess where all classes have names.
nlohmann::ordered_json to_json(const FilePrediction& prediction,
                               const std::vector<std::string>& class_names);

/// Returns a line for people: the file, the likeliest class and the one behind it, by their names
/// where all classes have names, with their probabilities.
std::string to_text(const FilePrediction& prediction, const std::vector<std::string>& class_names);

/// Returns lines for people on what a model reaches on the test set.
std::string evaluation_text(double loss, double accuracy, std::int64_t samples);

}  // namespace mnist_train::report
