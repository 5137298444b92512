#include "report/mistakes.h"

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <tuple>
#include <utility>

#include "base/file.h"
#include "report/sink.h"

namespace mnist_train::report {

namespace {

using Json = nlohmann::ordered_json;

constexpr std::size_t kMaxPictureBytes = 2'000'000;

/// Each line has `id`, `image`, `guess`, `truth`, `confidence`, and where classes have names
/// `guess_name` and `truth_name`.
class MistakesFile : public Sink {
 public:
  MistakesFile(std::filesystem::path path, std::vector<std::string> class_names)
      : path_(std::move(path)), class_names_(std::move(class_names)) {}

  void epoch(const EpochResult& result) override {
    if (result.predictions.empty()) return;  // none are wanted
    std::string text;
    std::map<std::int64_t, std::string> used;
    std::size_t bytes = 0;
    for (const Mistake& mistake : result.mistakes) {
      const std::string image = bytes < kMaxPictureBytes ? picture(mistake.id, result) : "";
      bytes += image.size();
      text += line(mistake, image);
      used[mistake.id] = image;
    }
    pictures_ = std::move(used);
    write_file_atomically(path_, text, ExitCode::kRunFailed);
  }

 private:
  /// From one epoch to the next most mistakes are the same ones, so their pictures are kept.
  std::string picture(std::int64_t id, const EpochResult& result) const {
    const auto known = pictures_.find(id);
    return known != pictures_.end() && !known->second.empty() ? known->second
                                                              : result.thumbnail(id);
  }

  std::string line(const Mistake& mistake, const std::string& image) const {
    Json row{{"id", mistake.id},
             {"image", image},
             {"guess", mistake.guess},
             {"truth", mistake.truth},
             {"confidence", mistake.confidence}};
    if (!class_names_.empty()) {
      row["guess_name"] = class_names_.at(static_cast<std::size_t>(mistake.guess));
      row["truth_name"] = class_names_.at(static_cast<std::size_t>(mistake.truth));
    }
    return row.dump(-1, ' ', false, Json::error_handler_t::replace) + '\n';
  }

  std::filesystem::path path_;
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
  std::vector<std::int64_t> round;  // of each mistake: how many of its kind are more confident
  round.reserve(all.size());
  for (const Mistake& mistake : all) round.push_back(images[kind(mistake)]++);
  std::vector<std::size_t> order(all.size());
  for (std::size_t i = 0; i < order.size(); ++i) order[i] = i;
  std::sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
    const Kind of_a = kind(all[a]);
    const Kind of_b = kind(all[b]);
    return std::tuple(round[a], -images[of_a], of_a) < std::tuple(round[b], -images[of_b], of_b);
  });
  std::vector<Mistake> chosen;
  for (const std::size_t i : order) {
    if (chosen.size() == most) break;
    chosen.push_back(std::move(all[i]));
  }
  return chosen;
}

std::unique_ptr<Sink> mistakes_sink(const std::filesystem::path& path,
                                    const std::vector<std::string>& class_names) {
  return std::make_unique<MistakesFile>(path, class_names);
}

}  // namespace mnist_train::report
