#pragma once

#include "data/image_source.h"

namespace mnist_train::data {

/// Drawn digits of MNIST's geometry, for machines without data: strokes, turned, sheared, scaled,
/// moved and of varying width. A sample is the same in every run and depends on its number alone;
/// labels repeat 0 to 9.
class SyntheticDigits : public ImageSource {
 public:
  static constexpr std::int64_t kTrainCount = 60000;
  static constexpr std::int64_t kTestCount = 10000;

  /// The samples whose numbers are [first, first + count).
  SyntheticDigits(std::int64_t first, std::int64_t count);

  std::string sample_name(std::int64_t sample) const override;
  std::span<const std::uint8_t> read(std::int64_t sample,
                                     std::vector<std::uint8_t>& buffer) const override;

 private:
  std::int64_t first_;
};

}  // namespace mnist_train::data
