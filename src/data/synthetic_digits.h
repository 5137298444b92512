#pragma once

#include "data/image_source.h"

namespace mnist_train::data {

/// Drawn digits of MNIST's geometry, for machines without data: strokes, turned, sheared, scaled,
/// moved and of varying width. Sample i is the same in every run and depends on i alone; labels go
/// round 0 … 9.
class SyntheticDigits : public ImageSource {
 public:
  static constexpr std::int64_t kTrainCount = 60000;
  static constexpr std::int64_t kTestCount = 10000;

  /// Samples [first, first + count).
  SyntheticDigits(std::int64_t first, std::int64_t count);

  const ImageSet& outline() const override { return outline_; }
  std::size_t image_bytes() const override;
  std::size_t label_bytes() const override;
  ImageSet read() override;
  ImageSet read_into(std::span<std::uint8_t> images, std::span<std::uint8_t> labels,
                     std::shared_ptr<const void> owner) override;

 private:
  std::int64_t first_;
  ImageSet outline_;
};

}  // namespace mnist_train::data
