// A Caffe2 LMDB record: its parsed fields must lie within the input and survive a round trip.

#include <limits>

#include "base/error.h"
#include "data/convert.h"
#include "data/sources.h"
#include "fuzz/input.h"

using mnist_train::data::Caffe2Record;
using mnist_train::data::parse_caffe2_record;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  try {
    const Caffe2Record record = parse_caffe2_record({data, size}, "fuzz");
    const std::string image(record.image.begin(), record.image.end());
    if (image.size() > size || record.label < 0) std::abort();
    if (record.label > std::numeric_limits<std::int32_t>::max()) return 0;
    const std::string again =
        mnist_train::data::write_caffe2_record(image, static_cast<std::int32_t>(record.label));
    const Caffe2Record same = parse_caffe2_record(
        {reinterpret_cast<const std::uint8_t*>(again.data()), again.size()}, "");
    if (std::string(same.image.begin(), same.image.end()) != image || same.label != record.label) {
      std::abort();
    }
  } catch (const mnist_train::Error&) {
  }
  return 0;
}
