#include "data/lmdb_source.h"

#include <algorithm>

#include "base/hash.h"
#include "base/log.h"
#include "data/caffe2_record.h"

namespace mnist_train::data {

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
  return name_ + ": key " + escape_control_bytes(std::string(key));
}

std::string LmdbSource::sample_name(std::int64_t sample) const {
  return name_of_key(samples_[static_cast<std::size_t>(sample)].key);
}

std::span<const std::uint8_t> LmdbSource::read(std::int64_t sample,
                                               std::vector<std::uint8_t>& /*buffer*/) const {
  return samples_[static_cast<std::size_t>(sample)].image;
}

}  // namespace mnist_train::data
