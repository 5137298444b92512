#include "data/selected_set.h"

#include <algorithm>
#include <utility>

#include "base/hash.h"

namespace mnist_train::data {

SelectedSet::SelectedSet(std::vector<std::shared_ptr<const EncodedSet>> sets)
    : sets_(std::move(sets)) {
  source_ = sets_.front()->source();
  class_names_ = sets_.front()->class_names();
  Hasher hasher;
  for (std::size_t set = 0; set < sets_.size(); ++set) {
    classes_ = std::max(classes_, sets_[set]->classes());
    hasher.update(sets_[set]->hash().data(), sets_[set]->hash().size());
    labels_.insert(labels_.end(), sets_[set]->labels().begin(), sets_[set]->labels().end());
    for (std::int64_t sample = 0; sample < sets_[set]->count(); ++sample) {
      samples_.push_back({set, sample});
    }
  }
  hash_ = hasher.named_digest();
}

SelectedSet SelectedSet::select(const std::vector<std::int64_t>& samples) const {
  SelectedSet result = *this;
  result.samples_.clear();
  result.labels_.clear();
  for (const std::int64_t sample : samples) {
    result.samples_.push_back(samples_[static_cast<std::size_t>(sample)]);
    result.labels_.push_back(labels_[static_cast<std::size_t>(sample)]);
  }
  Hasher hasher;
  hasher.update(hash_.data(), hash_.size());
  hasher.update(samples.data(), samples.size() * sizeof samples.front());
  result.hash_ = hasher.named_digest();
  return result;
}

std::vector<std::int64_t> SelectedSet::parts() const {
  std::vector<std::int64_t> counts(sets_.size());
  for (const Sample& sample : samples_) ++counts[sample.set];
  return counts;
}

std::string SelectedSet::name(std::int64_t sample) const {
  const Sample& of = samples_[static_cast<std::size_t>(sample)];
  return sets_[of.set]->name(of.sample);
}

std::span<const std::uint8_t> SelectedSet::read(std::int64_t sample,
                                                std::vector<std::uint8_t>& buffer) const {
  const Sample& of = samples_[static_cast<std::size_t>(sample)];
  return sets_[of.set]->read(of.sample, buffer);
}

}  // namespace mnist_train::data
