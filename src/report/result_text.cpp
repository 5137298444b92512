#include "report/result_text.h"

#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <array>
#include <charconv>

#include "base/log.h"
#include "report/console.h"

namespace mnist_train::report {

namespace {

using Json = nlohmann::ordered_json;

/// Returns the double that is printed with the few digits that a float needs.
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
