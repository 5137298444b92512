#pragma once

#include <memory>
#include <vector>

#include "data/encoded_set.h"

namespace mnist_train::data {

/// Samples of other encoded sets, in an order of its own.
class SelectedSet : public EncodedSet {
 public:
  /// All of theirs, one set behind the other. Their classes are numbered alike.
  explicit SelectedSet(std::vector<std::shared_ptr<const EncodedSet>> sets);

  /// Only some of these, by their places here.
  SelectedSet select(const std::vector<std::int64_t>& samples) const;
  /// How many are of each of the sets.
  std::vector<std::int64_t> parts() const;

  std::string name(std::int64_t sample) const override;
  std::span<const std::uint8_t> read(std::int64_t sample,
                                     std::vector<std::uint8_t>& buffer) const override;

 private:
  struct Sample {
    std::size_t set;
    std::int64_t sample;
  };

  std::vector<std::shared_ptr<const EncodedSet>> sets_;
  std::vector<Sample> samples_;
};

}  // namespace mnist_train::data
