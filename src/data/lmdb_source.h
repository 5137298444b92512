#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>

#include "data/image_source.h"
#include "data/lmdb_file.h"

namespace mnist_train::data {

/// One sample of a Caffe2 LMDB: an encoded image and the number of its class.
struct Caffe2Record {
  std::span<const std::uint8_t> image;  // a JPEG or PNG file, within the record's bytes
  std::int64_t label = 0;
};

/// Reads a `TensorProtos` message of two tensors: the image (data_type STRING, one string) and the
/// label (INT32 or INT64, one number), as Caffe2's dataset tools write them and DALI's
/// `readers.caffe2` reads them. Copies nothing. Throws Error(kData) with `name` and the offset of
/// the tensor that is wrong.
Caffe2Record parse_caffe2_record(std::span<const std::uint8_t> bytes, const std::string& name);

/// Returns the message that holds an encoded image and its label.
std::string write_caffe2_record(const std::string& image, std::int32_t label);

/// A Caffe2 LMDB in the order of its keys. Opening it reads every
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
