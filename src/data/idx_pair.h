#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>

#include "data/idx_file.h"
#include "data/image_set.h"
#include "data/image_source.h"

namespace mnist_train::data {

/// The two files of one half of a data set.
struct IdxFiles {
  std::filesystem::path images;
  std::filesystem::path labels;
};

/// Images [n,h,w] or [n,c,h,w] and their labels [n], opened and checked against each other, not yet
/// read. Throws Error(kData) when counts differ, shapes do not fit, or a label is `max_classes` or
/// more.
class IdxPair : public ImageSource {
 public:
  static constexpr std::int64_t kMostClasses = 256;  // labels are bytes

  explicit IdxPair(const IdxFiles& files, std::int64_t max_classes = kMostClasses);

  /// What the headers say. Of what `read` gives, `classes` is the greatest label + 1, or
  /// `max_classes` where fewer are known.
  const ImageSet& outline() const override { return outline_; }
  std::size_t image_bytes() const override { return images_.size(); }
  std::size_t label_bytes() const override { return labels_.size(); }

  ImageSet read() override;
  ImageSet read_into(std::span<std::uint8_t> images, std::span<std::uint8_t> labels,
                     std::shared_ptr<const void> owner) override;

 private:
  ImageSet finish(std::span<const std::uint8_t> images, std::span<const std::uint8_t> labels,
                  std::shared_ptr<const void> owner) const;

  IdxReader images_;
  IdxReader labels_;
  std::int64_t max_classes_;
  ImageSet outline_;
};

}  // namespace mnist_train::data
