#pragma once

#include <cstdint>
#include <span>
#include <string>

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

}  // namespace mnist_train::data
