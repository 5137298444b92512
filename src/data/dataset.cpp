#include "data/dataset.h"

#include <algorithm>
#include <array>
#include <optional>
#include <string>
#include <utility>

#include "base/error.h"
#include "base/hash.h"
#include "data/find_files.h"

namespace mnist_train::data {

namespace {

// Every block begins on a cache line.
constexpr std::size_t kAlignment = 64;

std::size_t aligned(std::size_t bytes) {
  return (bytes + kAlignment - 1) / kAlignment * kAlignment;
}

std::int64_t limited(const ImageSet& outline, std::optional<std::int64_t> limit, const char* key) {
  if (!limit) return outline.count;
  if (*limit < 1 || *limit > outline.count) {
    throw Error(ExitCode::kData, outline.source + ": data." + key + " is " +
                                     std::to_string(*limit) + ", but the file has " +
                                     std::to_string(outline.count) + " images");
  }
  return *limit;
}

std::string geometry_text(const ImageSet& set) {
  return std::to_string(set.channels) + " x " + std::to_string(set.height) + " x " +
         std::to_string(set.width);
}

void check_one_geometry(const ImageSet& train, const ImageSet& test) {
  if (train.channels == test.channels && train.height == test.height && train.width == test.width) {
    return;
  }
  throw Error(ExitCode::kData, test.source + ": images are " + geometry_text(test) +
                                   ", but those of " + train.source + " are " +
                                   geometry_text(train) + " (channels x height x width)");
}

ImageSet first_samples(ImageSet set, std::int64_t count, std::int64_t classes) {
  set.count = count;
  set.classes = classes;
  set.images = set.images.first(static_cast<std::size_t>(count * set.bytes_per_image()));
  set.labels = set.labels.first(static_cast<std::size_t>(count));
  return set;
}

void hash_half(Hasher& hasher, const ImageSet& set) {
  for (const std::int64_t number : {set.count, set.channels, set.height, set.width}) {
    std::array<std::uint8_t, 8> bytes{};  // little-endian everywhere
    for (std::size_t i = 0; i < bytes.size(); ++i) {
      bytes[i] = static_cast<std::uint8_t>(number >> (8 * i));
    }
    hasher.update(bytes.data(), bytes.size());
  }
  hasher.update(set.images.data(), set.images.size());
  hasher.update(set.labels.data(), set.labels.size());
}

}  // namespace

DatasetReader::DatasetReader(const options::DataOptions& options)
    : DatasetReader(options, find_dataset_files(options)) {}

DatasetReader::DatasetReader(const options::DataOptions& options, const DatasetFiles& files)
    : train_(files.train, files.max_classes),
      test_(files.test, files.max_classes),
      train_count_(limited(train_.outline(), options.limit_train, "limit_train")),
      test_count_(limited(test_.outline(), options.limit_test, "limit_test")) {
  check_one_geometry(train_.outline(), test_.outline());
}

std::size_t DatasetReader::bytes() const {
  return aligned(train_.image_bytes()) + aligned(train_.label_bytes()) +
         aligned(test_.image_bytes()) + aligned(test_.label_bytes());
}

Dataset DatasetReader::read() {
  ImageSet train = train_.read();
  return finish(std::move(train), test_.read());
}

Dataset DatasetReader::read_into(std::span<std::uint8_t> memory,
                                 std::shared_ptr<const void> owner) {
  const auto take = [&memory](std::size_t bytes) {
    const auto block = memory.first(bytes);
    memory = memory.subspan(aligned(bytes));
    return block;
  };
  const auto read_half = [&](IdxPair& pair) {
    const auto images = take(pair.image_bytes());
    const auto labels = take(pair.label_bytes());
    return pair.read_into(images, labels, owner);
  };
  ImageSet train = read_half(train_);
  return finish(std::move(train), read_half(test_));
}

Dataset DatasetReader::finish(ImageSet train, ImageSet test) const {
  const std::int64_t classes = std::max(train.classes, test.classes);
  Dataset dataset{first_samples(std::move(train), train_count_, classes),
                  first_samples(std::move(test), test_count_, classes), ""};
  Hasher hasher;
  hash_half(hasher, dataset.train);
  hash_half(hasher, dataset.test);
  dataset.hash = "xxh3-128:" + hasher.hex_digest();
  return dataset;
}

Dataset open_dataset(const options::DataOptions& options) { return DatasetReader(options).read(); }

}  // namespace mnist_train::data
