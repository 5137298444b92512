#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace mnist_train::report {

/// What a model makes of one test image, a line of `predictions.jsonl`.
struct Prediction {
  std::int64_t id = 0;  // place in the test set
  std::string image;    // a data: URI with a PNG, which browsers and Python read alike
  std::int64_t guess = 0;
  std::int64_t truth = 0;
  std::vector<double> scores;  // probabilities by class
};

/// One object a line: `id`, `image`, `guess`, `truth`, `score_0`, …, and where classes have names
/// `guess_name` and `truth_name`; whole or not at all. Throws Error(kRunFailed).
void write_predictions(const std::filesystem::path& path,
                       const std::vector<Prediction>& predictions,
                       const std::vector<std::string>& class_names = {});

/// A PNG of an image of 1 or 3 channels; of others, the first alone. `pixels`: [channels, height,
/// width] u8.
std::string image_png(const std::uint8_t* pixels, std::int64_t channels, std::int64_t height,
                      std::int64_t width);

/// The same as "data:image/png;base64,…".
std::string image_uri(const std::uint8_t* pixels, std::int64_t channels, std::int64_t height,
                      std::int64_t width);

}  // namespace mnist_train::report
