#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace mnist_train::report {

/// A test image that the model takes for another class than its own: a line of mistakes.jsonl.
struct Mistake {
  std::int64_t id = 0;     // place in the test set
  std::int64_t guess = 0;  // the predicted class
  std::int64_t truth = 0;
  double confidence = 0;   // the probability of the predicted class
  std::string image = {};  // a data: URI with a PNG or a JPEG; may be empty
};

/// How many mistakes a run keeps of an evaluation.
inline constexpr std::size_t kMostMistakes = 240;

/// Returns at most `most` of all mistakes, chosen so that rare kinds are among them, a kind being a
/// pair of classes: the most confident one of each kind, the most frequent kinds first, then the
/// second of each kind, and so on.
std::vector<Mistake> choose_mistakes(std::vector<Mistake> all, std::size_t most = kMostMistakes);

}  // namespace mnist_train::report
