#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <numeric>
#include <tuple>
#include <utility>

#include "base/file.h"
#include "report/run_folder.h"
#include "report/sink.h"

namespace mnist_train::report {

namespace {

constexpr std::size_t kMistakePictureBytes = 2'000'000;

std::string json_text(const std::string& text) {
  return nlohmann::json(text).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

/// Returns the keys `id`, `image`, `guess` and `truth` of a line, without the closing brace.
std::string begin_line(std::int64_t id, const std::string& image, std::int64_t guess,
                       std::int64_t truth) {
  return fmt::format(R"({{"id":{},"image":"{}","guess":{},"truth":{})", id, image, guess, truth);
}

/// Returns the keys `guess_name` and `truth_name`, if classes have names, and the end of a line.
std::string end_line(const std::vector<std::string>& class_names, std::int64_t guess,
                     std::int64_t truth) {
  if (class_names.empty()) return "}\n";
  return fmt::format(R"(,"guess_name":{},"truth_name":{}}})",
                     json_text(class_names.at(static_cast<std::size_t>(guess))),
                     json_text(class_names.at(static_cast<std::size_t>(truth)))) +
         "\n";
}

class PredictionFiles : public Sink {
 public:
  PredictionFiles(const std::filesystem::path& run_folder, std::vector<std::string> class_names)
      : folder_(run_folder), class_names_(std::move(class_names)) {}

  void epoch(const EpochResult& result) override {
    if (result.predictions.empty()) return;  // report.predictions.batches is 0
    write_file_atomically(folder_ / files::kPredictions, prediction_lines(result),
                          ExitCode::kRunFailed);
    write_file_atomically(folder_ / files::kMistakes, mistake_lines(result), ExitCode::kRunFailed);
  }

 private:
  std::string prediction_lines(const EpochResult& result) const {
    std::string text;
    for (const Prediction& row : result.predictions) {
      text += begin_line(row.id, row.image, row.guess, row.truth);
      for (std::size_t label = 0; label < row.scores.size(); ++label) {
        const double score = row.scores[label];  // a broken model can give NaN, which JSON lacks
        text += fmt::format(R"(,"score_{}":)", label);
        text += std::isfinite(score) ? fmt::format("{:.7g}", score) : "null";
      }
      text += end_line(class_names_, row.guess, row.truth);
    }
    return text;
  }

  std::string mistake_lines(const EpochResult& result) {
    std::string text;
    std::map<std::int64_t, std::string> used;
    std::size_t bytes = 0;
    for (const Mistake& mistake : result.mistakes) {
      std::string& image = used[mistake.id];
      if (bytes < kMistakePictureBytes) image = picture(mistake.id, result);
      bytes += image.size();
      text += begin_line(mistake.id, image, mistake.guess, mistake.truth) +
              ",\"confidence\":" + nlohmann::json(mistake.confidence).dump() +
              end_line(class_names_, mistake.guess, mistake.truth);
    }
    pictures_ = std::move(used);
    return text;
  }

  /// Successive epochs share most mistakes, so pictures are kept.
  std::string picture(std::int64_t id, const EpochResult& result) const {
    const auto known = pictures_.find(id);
    return known != pictures_.end() && !known->second.empty() ? known->second
                                                              : result.thumbnail(id);
  }

  std::filesystem::path folder_;
  std::vector<std::string> class_names_;
  std::map<std::int64_t, std::string> pictures_;  // of the last epoch's mistakes, by id
};

}  // namespace

std::vector<Mistake> choose_mistakes(std::vector<Mistake> all, std::size_t most) {
  std::sort(all.begin(), all.end(), [](const Mistake& a, const Mistake& b) {
    return std::tuple(-a.confidence, a.id) < std::tuple(-b.confidence, b.id);
  });
  using Kind = std::pair<std::int64_t, std::int64_t>;
  const auto kind = [](const Mistake& mistake) { return Kind(mistake.truth, mistake.guess); };
  std::map<Kind, std::int64_t> images;
  std::vector<std::int64_t> round;  // rank of each mistake within its kind, by confidence
  round.reserve(all.size());
  for (const Mistake& mistake : all) round.push_back(images[kind(mistake)]++);
  std::vector<std::size_t> order(all.size());
  std::iota(order.begin(), order.end(), 0);
  std::sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
    const Kind of_a = kind(all[a]);
    const Kind of_b = kind(all[b]);
    return std::tuple(round[a], -images[of_a], of_a) < std::tuple(round[b], -images[of_b], of_b);
  });
  order.resize(std::min(order.size(), most));
  std::vector<Mistake> chosen;
  chosen.reserve(order.size());
  for (const std::size_t i : order) chosen.push_back(std::move(all[i]));
  return chosen;
}

std::unique_ptr<Sink> predictions_sink(const std::filesystem::path& run_folder,
                                       const std::vector<std::string>& class_names) {
  return std::make_unique<PredictionFiles>(run_folder, class_names);
}

}  // namespace mnist_train::report
