#pragma once

#include <filesystem>
#include <string_view>

#include "data/image_source.h"
#include "data/lmdb_file.h"

namespace mnist_train::data {

/// A Caffe2 LMDB (see data/caffe2_record.h) in the order of its keys. Opening it reads every
/// record's frame, not its image. There are as many classes as the greatest label + 1.
class LmdbSource : public ImageSource {
 public:
  /// Throws Error(kData) naming the file and the key: no entries, a record of another kind.
  LmdbSource(const std::filesystem::path& path, BadSamples& bad);

  std::string sample_name(std::int64_t sample) const override;
  std::span<const std::uint8_t> read(std::int64_t sample,
                                     std::vector<std::uint8_t>& buffer) const override;

 private:
  struct LmdbSample {
    std::string_view key;
    std::span<const std::uint8_t> image;
  };
  std::string name_of_key(std::string_view key) const;

  LmdbReader reader_;
  std::vector<LmdbSample> samples_;
};

}  // namespace mnist_train::data
