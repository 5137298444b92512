#include "data/lmdb_source.h"

#include <algorithm>
#include <functional>
#include <optional>
#include <protozero/pbf_reader.hpp>
#include <protozero/pbf_writer.hpp>

#include "base/hash.h"
#include "base/log.h"

namespace mnist_train::data {

namespace {

// caffe2.proto: TensorProtos and TensorProto.
enum Caffe2Field : protozero::pbf_tag_type {
  kProtos = 1,
  kDims = 1,
  kDataType = 2,
  kInt32Data = 4,
  kByteData = 5,
  kStringData = 6,
  kInt64Data = 10,
};
enum DataType : std::int32_t { kInt32 = 2, kByte = 3, kString = 4, kInt64 = 10 };

struct Tensor {
  std::int32_t data_type = 0;
  std::optional<protozero::data_view> text;
  std::optional<std::int64_t> number;
  bool has_more = false;  // a second string or number
};

void add_number(Tensor& tensor, std::int64_t number) {
  tensor.has_more = tensor.has_more || tensor.number.has_value();
  tensor.number = number;
}

/// Numbers may be packed into one field or come as a field each.
template <typename Packed, typename Single>
void add_numbers(Tensor& tensor, protozero::pbf_reader& reader, Packed packed, Single single) {
  if (reader.wire_type() == protozero::pbf_wire_type::length_delimited) {
    for (const auto number : (reader.*packed)()) add_number(tensor, number);
  } else {
    add_number(tensor, (reader.*single)());
  }
}

Tensor read_tensor(protozero::pbf_reader reader) {
  using protozero::pbf_reader;
  Tensor tensor;
  while (reader.next()) {
    switch (reader.tag()) {
      case kDataType:
        tensor.data_type = reader.get_enum();
        break;
      case kStringData:
        tensor.has_more = tensor.has_more || tensor.text.has_value();
        tensor.text = reader.get_view();
        break;
      case kInt32Data:
        add_numbers(tensor, reader, &pbf_reader::get_packed_int32, &pbf_reader::get_int32);
        break;
      case kInt64Data:
        add_numbers(tensor, reader, &pbf_reader::get_packed_int64, &pbf_reader::get_int64);
        break;
      default:
        reader.skip();
    }
  }
  return tensor;
}

/// Throws what is wrong with a record.
using Refuse = std::function<void(const std::string& problem)>;

void take(const Tensor& tensor, Caffe2Record& record, bool& image, bool& label,
          const Refuse& refuse) {
  if (tensor.data_type == kString && tensor.text) {
    if (image || tensor.has_more) refuse("holds more than one image");
    image = true;
    record.image = {reinterpret_cast<const std::uint8_t*>(tensor.text->data()),
                    tensor.text->size()};
  } else if ((tensor.data_type == kInt32 || tensor.data_type == kInt64) && tensor.number) {
    if (label || tensor.has_more) refuse("holds more than one label; one number a sample is read");
    label = true;
    record.label = *tensor.number;
  } else if (tensor.data_type == kByte) {
    refuse("holds raw pixels (data_type BYTE); encoded images (STRING) are read");
  } else {
    refuse("holds a tensor of data_type " + std::to_string(tensor.data_type) +
           " that is neither an image (STRING) nor a label (INT32, INT64), or is empty");
  }
}

}  // namespace

Caffe2Record parse_caffe2_record(std::span<const std::uint8_t> bytes, const std::string& name) {
  const auto* begin = reinterpret_cast<const char*>(bytes.data());
  protozero::pbf_reader message(begin, bytes.size());
  Caffe2Record record;
  bool image = false;
  bool label = false;
  std::size_t offset = 0;
  const Refuse refuse = [&](const std::string& problem) {
    throw Error(ExitCode::kData,
                name + ": byte " + std::to_string(offset) + " of the record: " + problem);
  };
  try {
    while (message.next()) {
      if (message.tag() != kProtos) {
        message.skip();
        continue;
      }
      const protozero::data_view tensor = message.get_view();
      offset = static_cast<std::size_t>(tensor.data() - begin);
      take(read_tensor(protozero::pbf_reader(tensor)), record, image, label, refuse);
    }
  } catch (const protozero::exception& error) {
    refuse(std::string("is no TensorProtos message (") + error.what() + ")");
  }
  if (!image || !label) {
    offset = bytes.size();
    refuse(image ? "has no label" : "has no image");
  }
  if (record.label < 0 || record.label > INT32_MAX) {
    refuse("label " + std::to_string(record.label) + " is out of range");
  }
  return record;
}

std::string write_caffe2_record(const std::string& image, std::int32_t label) {
  const auto tensor = [](DataType type) {
    std::string bytes;
    protozero::pbf_writer writer(bytes);
    writer.add_int64(kDims, 1);
    writer.add_enum(kDataType, type);
    return bytes;
  };
  std::string image_tensor = tensor(kString);
  protozero::pbf_writer(image_tensor).add_bytes(kStringData, image);
  std::string label_tensor = tensor(kInt32);
  protozero::pbf_writer(label_tensor).add_packed_int32(kInt32Data, &label, &label + 1);
  std::string record;
  protozero::pbf_writer writer(record);
  writer.add_message(kProtos, image_tensor);
  writer.add_message(kProtos, label_tensor);
  return record;
}

LmdbSource::LmdbSource(const std::filesystem::path& path, BadSamples& bad) : reader_(path) {
  name_ = reader_.name();
  samples_.reserve(static_cast<std::size_t>(reader_.entries()));
  labels_.reserve(samples_.capacity());
  Hasher hasher;
  reader_.for_each([&](std::string_view key, std::span<const std::uint8_t> value) {
    Caffe2Record record;
    try {
      record = parse_caffe2_record(value, name_of_key(key));
    } catch (const Error& error) {
      return bad.add(error.what());
    }
    const auto label = static_cast<std::int32_t>(record.label);
    const std::size_t size = record.image.size();
    hasher.update(key.data(), key.size());
    hasher.update(&size, sizeof size);
    hasher.update(&label, sizeof label);
    samples_.push_back({key, record.image});
    labels_.push_back(label);
    classes_ = std::max<std::int64_t>(classes_, record.label + 1);
  });
  if (samples_.empty()) throw Error(ExitCode::kData, name_ + ": holds no samples");
  hash_ = hasher.named_digest();
}

std::string LmdbSource::name_of_key(std::string_view key) const {
  constexpr std::size_t kMostBytes = 64;  // where a file is damaged, anything may be a key
  const std::string shown = on_one_line(key.substr(0, kMostBytes));
  return name_ + ": key " + shown + (key.size() > kMostBytes ? "…" : "");
}

std::string LmdbSource::sample_name(std::int64_t sample) const {
  return name_of_key(samples_[static_cast<std::size_t>(sample)].key);
}

std::span<const std::uint8_t> LmdbSource::read(std::int64_t sample,
                                               std::vector<std::uint8_t>& /*buffer*/) const {
  return samples_[static_cast<std::size_t>(sample)].image;
}

}  // namespace mnist_train::data
