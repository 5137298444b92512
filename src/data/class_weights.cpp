#include "data/class_weights.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <set>
#include <string>

#include "base/error.h"
#include "base/print.h"

namespace mnist_train::data {

namespace {

/// Returns the names as `"a", "b" and 3 more`.
std::string quoted_classes(const std::vector<std::string>& names) {
  constexpr std::size_t kMostNamed = 50;
  const std::size_t named = std::min(names.size(), kMostNamed);
  std::string text;
  for (std::size_t i = 0; i < named; ++i) text += (i == 0 ? "\"" : ", \"") + names[i] + '"';
  if (named < names.size()) text += " and " + std::to_string(names.size() - named) + " more";
  return text;
}

/// Throws ConfigKeyError if there are weights of other classes.
void require_classes(const settings::ClassWeightOptions& options,
                     const std::vector<std::string>& names) {
  const std::set<std::string> known(names.begin(), names.end());
  std::vector<std::string> unknown;
  for (const auto& [name, weight] : options.by_class) {
    if (!known.contains(name)) unknown.push_back(name);
  }
  if (unknown.empty()) return;
  throw ConfigKeyError("/class_weights: the data have no class " + quoted_classes(unknown) +
                       "; the classes are " + quoted_classes(names));
}

}  // namespace

std::vector<float> class_weights(const settings::ClassWeightOptions& options,
                                 const Dataset& dataset) {
  const auto classes = static_cast<std::size_t>(dataset.train.classes);
  std::vector<std::string> names;
  for (std::size_t i = 0; i < classes; ++i) names.push_back(name_or_number(dataset.class_names, i));
  require_classes(options, names);
  const std::vector<std::int64_t> sizes = dataset.train.class_sizes();
  std::vector<std::string> empty;
  std::vector<float> weights;
  for (std::size_t i = 0; i < classes; ++i) {
    if (sizes[i] == 0) empty.push_back(names[i]);
    const auto given = options.by_class.find(names[i]);
    const double by_size = static_cast<double>(dataset.train.count) /
                           static_cast<double>(dataset.train.classes * sizes[i]);
    const double weight = given == options.by_class.end() ? 1 : given->second;
    weights.push_back(static_cast<float>(options.balanced ? by_size : weight));
  }
  if (!empty.empty()) {
    throw Error(ExitCode::kData, dataset.train.source +
                                     ": class_weights needs training samples of every class, after "
                                     "limits and held-out samples; there are none of " +
                                     quoted_classes(empty));
  }
  if (std::ranges::count(weights, 0.0F) == dataset.train.classes) {
    throw ConfigKeyError("/class_weights: the weights of all classes are 0");
  }
  return weights;
}

}  // namespace mnist_train::data
