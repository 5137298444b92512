#include "data/class_weights.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <string>

#include "base/error.h"

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

/// Returns the names of the classes by number; their numbers if the data have no names.
std::vector<std::string> class_names_of(const Dataset& dataset) {
  std::vector<std::string> names = dataset.class_names;
  for (std::int64_t i = 0; dataset.class_names.empty() && i < dataset.train.classes; ++i) {
    names.push_back(std::to_string(i));
  }
  return names;
}

/// Returns the number of training samples of each class. Throws Error(kData) if it is 0.
std::vector<std::int64_t> class_sizes(const Dataset& dataset,
                                      const std::vector<std::string>& names) {
  std::vector<std::int64_t> sizes(names.size());
  for (const auto label : dataset.train.labels) ++sizes[label];
  std::vector<std::string> empty;
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    if (sizes[i] == 0) empty.push_back(names[i]);
  }
  if (empty.empty()) return sizes;
  throw Error(ExitCode::kData, dataset.train.source +
                                   ": class_weights needs training samples of every class, after "
                                   "limits and held-out samples; there are none of " +
                                   quoted_classes(empty));
}

}  // namespace

std::vector<float> class_weights(const settings::ClassWeightOptions& options,
                                 const Dataset& dataset) {
  const std::vector<std::string> names = class_names_of(dataset);
  std::map<std::string, std::size_t> numbers;
  for (std::size_t i = 0; i < names.size(); ++i) numbers.emplace(names[i], i);
  std::vector<float> weights(names.size(), 1.0F);
  std::vector<std::string> unknown;
  for (const auto& [name, weight] : options.by_class) {
    const auto found = numbers.find(name);
    if (found == numbers.end()) {
      unknown.push_back(name);
    } else {
      weights[found->second] = static_cast<float>(weight);
    }
  }
  if (!unknown.empty()) {
    throw ConfigKeyError("/class_weights: the data have no class " + quoted_classes(unknown) +
                         "; the classes are " + quoted_classes(names));
  }
  const std::vector<std::int64_t> sizes = class_sizes(dataset, names);
  for (std::size_t i = 0; options.balanced && i < names.size(); ++i) {
    weights[i] =
        static_cast<float>(static_cast<double>(dataset.train.count) /
                           (static_cast<double>(names.size()) * static_cast<double>(sizes[i])));
  }
  if (std::ranges::all_of(weights, [](float weight) { return weight == 0; })) {
    throw ConfigKeyError("/class_weights: the weights of all classes are 0");
  }
  return weights;
}

}  // namespace mnist_train::data
