#include <algorithm>
#include <cmath>
#include <iterator>
#include <limits>
#include <map>
#include <numeric>
#include <tuple>
#include <utility>

#include "report/records.h"
#include "report/sink.h"

// Figures that are computed from records, alike for the console, files and pages.

namespace mnist_train::report {

ClassCounts class_counts(const EpochDetails& details) {
  return details.confusion.empty() ? details.class_counts
                                   : count_by_class(details.confusion, details.classes);
}

bool are_unequal(const std::vector<std::int64_t>& class_sizes) {
  std::vector<std::int64_t> sizes;
  std::ranges::copy_if(class_sizes, std::back_inserter(sizes), [](auto size) { return size > 0; });
  if (sizes.empty()) return false;
  const auto [least, most] = std::ranges::minmax(sizes);
  return 2 * most > 3 * least;
}

std::vector<std::int64_t> never_predicted(const ClassCounts& counts) {
  std::vector<std::int64_t> labels;
  for (std::size_t label = 0; label < counts.samples.size(); ++label) {
    if (counts.samples[label] > 0 && counts.predicted[label] == 0) {
      labels.push_back(static_cast<std::int64_t>(label));
    }
  }
  return labels;
}

std::string advice_on_never_predicted(bool sizes_are_unequal, bool has_class_weights) {
  return sizes_are_unequal && !has_class_weights
             ? "class_weights \"balanced\" makes all classes count alike"
             : "more epochs or another learning_rate may help";
}

double selection_score(const EpochRecord& record, settings::BestBy best_by) {
  using settings::BestBy;
  if (best_by == BestBy::kAccuracy) {
    return record.validation_accuracy.value_or(record.test_accuracy);
  }
  if (best_by == BestBy::kBalancedAccuracy) {
    return record.validation_balanced_accuracy.value_or(record.test_balanced_accuracy);
  }
  const double loss = record.validation_loss.value_or(record.test_loss);
  return std::isfinite(loss) ? -loss : std::numeric_limits<double>::lowest();
}

const char* words_for(settings::BestBy best_by) {
  if (best_by == settings::BestBy::kLoss) return "loss";
  return best_by == settings::BestBy::kAccuracy ? "accuracy" : "balanced accuracy";
}

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

}  // namespace mnist_train::report
