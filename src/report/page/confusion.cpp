#include "report/page/confusion.h"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace mnist_train::report {

std::int64_t Confusion::of(std::int64_t truth) const {
  std::int64_t sum = 0;
  for (std::int64_t guess = 0; guess < classes; ++guess) sum += at(truth, guess);
  return sum;
}

std::int64_t Confusion::all() const {
  return std::accumulate(counts_.begin(), counts_.end(), std::int64_t{0});
}

std::int64_t Confusion::wrong() const {
  std::int64_t right = 0;
  for (std::int64_t label = 0; label < classes; ++label) right += at(label, label);
  return all() - right;
}

double Confusion::accuracy(std::int64_t truth) const {
  const std::int64_t images = of(truth);
  if (images == 0) return NAN;
  return static_cast<double>(at(truth, truth)) / static_cast<double>(images);
}

std::vector<ConfusedPair> most_confused(const Confusion& confusion, std::size_t most) {
  std::vector<ConfusedPair> pairs;
  for (std::int64_t truth = 0; truth < confusion.classes; ++truth) {
    for (std::int64_t guess = 0; guess < confusion.classes; ++guess) {
      const std::int64_t number = confusion.at(truth, guess);
      if (truth != guess && number > 0) pairs.push_back({truth, guess, number});
    }
  }
  std::stable_sort(pairs.begin(), pairs.end(),
                   [](const ConfusedPair& left, const ConfusedPair& right) {
                     return left.number > right.number;
                   });
  if (pairs.size() > most) pairs.resize(most);
  return pairs;
}

}  // namespace mnist_train::report
