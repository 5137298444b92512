#pragma once

#include <filesystem>
#include <vector>

#include "base/file.h"
#include "data/image_source.h"

namespace mnist_train::data {

/// Binary batches of CIFAR-10 (https://www.cs.toronto.edu/~kriz/cifar.html), one file behind the
/// other: records of a label from 0 to 9 in one byte and of 3 x 32 x 32 bytes, the planes red,
/// green and blue.
class CifarSource : public ImageSource {
 public:
  /// Maps the files and checks all labels. Throws Error(kData) with file and byte offset: an empty
  /// file, one that ends within a record, a label out of range.
  explicit CifarSource(const std::vector<std::filesystem::path>& files);

  std::string sample_name(std::int64_t sample) const override;
  std::span<const std::uint8_t> read(std::int64_t sample,
                                     std::vector<std::uint8_t>& buffer) const override;

 private:
  struct CifarBatch {
    std::string name;
    MappedFile file;
    std::int64_t first_sample;
  };

  void add(const std::filesystem::path& path);
  const CifarBatch& batch_of(std::int64_t sample) const;

  std::vector<CifarBatch> batches_;
};

}  // namespace mnist_train::data
