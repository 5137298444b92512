#include "report/page/confusion.h"

#include <algorithm>
#include <cmath>

namespace mnist_train::report {

namespace {

double fraction(std::int64_t part, std::int64_t whole) {
  return whole == 0 ? NAN : static_cast<double>(part) / static_cast<double>(whole);
}

}  // namespace

Confusion::Confusion(const EpochDetails& details)
    : classes(details.classes),
      counts_(details.confusion),
      rows_(static_cast<std::size_t>(classes)),
      columns_(static_cast<std::size_t>(classes)) {
  for (std::int64_t truth = 0; truth < classes; ++truth) {
    for (std::int64_t predicted = 0; predicted < classes; ++predicted) {
      const std::int64_t images = at(truth, predicted);
      rows_[static_cast<std::size_t>(truth)] += images;
      columns_[static_cast<std::size_t>(predicted)] += images;
      all_ += images;
      if (truth == predicted) right_ += images;
    }
  }
}

double Confusion::recall(std::int64_t label) const { return fraction(at(label, label), of(label)); }

double Confusion::precision(std::int64_t label) const {
  return fraction(at(label, label), predicted_as(label));
}

double Confusion::f1(std::int64_t label) const {
  return fraction(2 * at(label, label), of(label) + predicted_as(label));
}

std::vector<ConfusedPair> most_confused(const Confusion& confusion, std::size_t most) {
  std::vector<ConfusedPair> pairs;
  for (std::int64_t truth = 0; truth < confusion.classes; ++truth) {
    for (std::int64_t predicted = 0; predicted < confusion.classes; ++predicted) {
      const std::int64_t images = confusion.at(truth, predicted);
      if (truth != predicted && images > 0) pairs.push_back({truth, predicted, images});
    }
  }
  std::stable_sort(pairs.begin(), pairs.end(), [](const ConfusedPair& a, const ConfusedPair& b) {
    return a.images > b.images;
  });
  if (pairs.size() > most) pairs.resize(most);
  return pairs;
}

}  // namespace mnist_train::report
