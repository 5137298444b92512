#pragma once

#include <cstdint>
#include <filesystem>
#include <mutex>

#include "data/idx_file.h"
#include "data/image_source.h"

namespace mnist_train::data {

/// The two files of a split.
struct IdxFiles {
  std::filesystem::path images;
  std::filesystem::path labels;
};

/// Images [n,h,w] or [n,c,h,w] and their labels [n], opened and checked against each other. There
/// are `max_classes` classes, or, where that many are not known, the greatest label + 1. Throws
/// Error(kData) where counts differ, shapes do not fit, or a label is too great.
class IdxSource : public ImageSource {
 public:
  explicit IdxSource(const IdxFiles& files, std::int64_t max_classes = kMostClasses);

  std::string sample_name(std::int64_t sample) const override;
  /// Inflates a compressed file as a whole when it is first called.
  std::span<const std::uint8_t> read(std::int64_t sample,
                                     std::vector<std::uint8_t>& buffer) const override;
  std::span<const std::uint8_t> mapped_pixels() const override;
  /// Inflates a compressed file straight into `out`.
  bool read_first(std::int64_t count, std::uint8_t* out) override;

 private:
  void read_labels(const IdxFiles& files, std::int64_t max_classes);

  mutable IdxReader images_;
  mutable std::once_flag once_;
  mutable IdxFile pixels_;  // once `read` was called
};

}  // namespace mnist_train::data
