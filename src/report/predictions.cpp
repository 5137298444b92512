#include <spdlog/fmt/fmt.h>

#include <cmath>
#include <nlohmann/json.hpp>
#include <string_view>

#include "base/file.h"
#include "imaging/codec.h"
#include "report/sink.h"

namespace mnist_train::report {

namespace {

std::string base64(std::string_view bytes) {
  constexpr std::string_view kDigits =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string text;
  text.reserve((bytes.size() + 2) / 3 * 4);
  for (std::size_t i = 0; i < bytes.size(); i += 3) {
    std::uint32_t three = 0;
    for (std::size_t j = i; j < i + 3; ++j) {
      three = three << 8 | (j < bytes.size() ? static_cast<unsigned char>(bytes[j]) : 0U);
    }
    for (int shift = 18; shift >= 0; shift -= 6) text += kDigits[three >> shift & 63U];
  }
  for (std::size_t i = 0; i < (3 - bytes.size() % 3) % 3; ++i) text[text.size() - 1 - i] = '=';
  return text;
}

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

Picture make_picture(const std::uint8_t* pixels, std::int64_t channels, std::int64_t height,
                     std::int64_t width) {
  imaging::Image image;
  image.channels = channels == 3 ? 3 : 1;
  image.height = height;
  image.width = width;
  const std::int64_t plane = height * width;
  for (std::int64_t pixel = 0; pixel < plane; ++pixel) {
    for (std::int64_t channel = 0; channel < image.channels; ++channel) {
      image.pixels.push_back(pixels[channel * plane + pixel]);
    }
  }
  return {imaging::encode_png(image), height, width, image.channels};
}

std::string image_uri(const Picture& picture) {
  return "data:image/png;base64," + base64(picture.png);
}

}  // namespace mnist_train::report
