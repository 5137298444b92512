#include "data/lmdb_set.h"

#include <algorithm>

#include "base/error.h"
#include "base/hash.h"
#include "base/log.h"
#include "data/caffe2_record.h"

namespace mnist_train::data {

LmdbSet::LmdbSet(const std::filesystem::path& path, BadSamples& bad) : reader_(path) {
  source_ = reader_.name();
  samples_.reserve(static_cast<std::size_t>(reader_.entries()));
  labels_.reserve(samples_.capacity());
  Hasher hasher;
  reader_.for_each([&](std::string_view key, std::span<const std::uint8_t> value) {
    Caffe2Record record;
    try {
      record = parse_caffe2_record(value, name_of(key));
    } catch (const Error& error) {
      return bad.note(error.what());
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
  if (samples_.empty()) throw Error(ExitCode::kData, source_ + ": holds no samples");
  hash_ = hasher.named_digest();
}

std::string LmdbSet::name_of(std::string_view key) const {
  return reader_.name() + ": key " + escape_control_bytes(std::string(key));
}

std::string LmdbSet::name(std::int64_t sample) const {
  return name_of(samples_[static_cast<std::size_t>(sample)].key);
}

std::span<const std::uint8_t> LmdbSet::read(std::int64_t sample,
                                            std::vector<std::uint8_t>& /*buffer*/) const {
  return samples_[static_cast<std::size_t>(sample)].image;
}

}  // namespace mnist_train::data
