#pragma once

#include <filesystem>
#include <string_view>

#include "data/encoded_set.h"
#include "data/lmdb_file.h"

namespace mnist_train::data {

/// A Caffe2 LMDB (see data/caffe2_record.h) in the order of its keys. Opening it reads every
/// record's frame, not its image. `classes` is the greatest label + 1.
class LmdbSet : public EncodedSet {
 public:
  /// Throws Error(kData) naming the file and the key: no entries, a record that is none.
  LmdbSet(const std::filesystem::path& path, BadSamples& bad);

  std::string name(std::int64_t sample) const override;
  std::span<const std::uint8_t> read(std::int64_t sample,
                                     std::vector<std::uint8_t>& buffer) const override;

 private:
  struct Sample {
    std::string_view key;
    std::span<const std::uint8_t> image;
  };
  std::string name_of(std::string_view key) const;

  LmdbReader reader_;
  std::vector<Sample> samples_;
};

}  // namespace mnist_train::data
