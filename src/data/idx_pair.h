#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>

#include "data/idx_file.h"
#include "data/image_set.h"

namespace mnist_train::data {

/// The two files of one half of a data set.
struct IdxFiles {
  std::filesystem::path images;
  std::filesystem::path labels;
};

/// Images [n,h,w] or [n,c,h,w] and their labels [n], opened and checked against each other, not yet
/// read. Throws Error(kData) when counts differ, shapes do not fit, or a label is `max_classes` or
/// more.
class IdxPair {
 public:
  static constexpr std::int64_t kMostClasses = 256;  // labels are bytes

  explicit IdxPair(const IdxFiles& files, std::int64_t max_classes = kMostClasses);

  /// An ImageSet without samples and classes: what the headers say.
  const ImageSet& outline() const { return outline_; }
  std::size_t image_bytes() const { return images_.size(); }
  std::size_t label_bytes() const { return labels_.size(); }

  /// Reads both files, into memory of their own unless they can be mapped. Once.
  ImageSet read();
  /// Reads both files into memory of image_bytes() and label_bytes() that `owner` keeps. Once.
  ImageSet read_into(std::span<std::uint8_t> images, std::span<std::uint8_t> labels,
                     std::shared_ptr<const void> owner);

 private:
  ImageSet finish(std::span<const std::uint8_t> images, std::span<const std::uint8_t> labels,
                  std::shared_ptr<const void> owner) const;

  IdxReader images_;
  IdxReader labels_;
  std::int64_t max_classes_;
  ImageSet outline_;
};

/// Reads both files. `classes` is the greatest label + 1, at least 10 (the classes of MNIST's
/// kind).
ImageSet read_idx_pair(const std::filesystem::path& images, const std::filesystem::path& labels);

}  // namespace mnist_train::data
