#include <spdlog/fmt/fmt.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "base/file.h"
#include "report/sink.h"

namespace mnist_train::report {

namespace {

std::string json_text(const std::string& text) {
  return nlohmann::json(text).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

/// Each line has `id`, `image`, `guess`, `truth`, `score_0`, …, and where classes have names
/// `guess_name` and `truth_name`.
class PredictionsFile : public Sink {
 public:
  PredictionsFile(std::filesystem::path path, std::vector<std::string> class_names)
      : path_(std::move(path)), class_names_(std::move(class_names)) {}

  void epoch(const EpochResult& result) override {
    if (result.predictions.empty()) return;
    std::string text;
    for (const Prediction& row : result.predictions) {
      text += fmt::format(R"({{"id":{},"image":"{}","guess":{},"truth":{})", row.id, row.image,
                          row.guess, row.truth);
      for (std::size_t label = 0; label < row.scores.size(); ++label) {
        const double score = row.scores[label];  // a broken model can give NaN, which JSON lacks
        text += fmt::format(R"(,"score_{}":)", label);
        text += std::isfinite(score) ? fmt::format("{:.7g}", score) : "null";
      }
      if (!class_names_.empty()) {
        text += fmt::format(R"(,"guess_name":{},"truth_name":{})",
                            json_text(class_names_.at(static_cast<std::size_t>(row.guess))),
                            json_text(class_names_.at(static_cast<std::size_t>(row.truth))));
      }
      text += "}\n";
    }
    write_file_atomically(path_, text, ExitCode::kRunFailed);
  }

 private:
  std::filesystem::path path_;
  std::vector<std::string> class_names_;
};

}  // namespace

std::unique_ptr<Sink> predictions_sink(const std::filesystem::path& path,
                                       const std::vector<std::string>& class_names) {
  return std::make_unique<PredictionsFile>(path, class_names);
}

}  // namespace mnist_train::report
