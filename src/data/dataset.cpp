#include "data/dataset.h"

#include <algorithm>
#include <array>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/hash.h"
#include "data/find_files.h"
#include "data/hold_out.h"
#include "data/idx_pair.h"
#include "data/synthetic_digits.h"

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

DatasetReader::DatasetReader(const options::DataOptions& options, std::int64_t seed)
    : validation_(options.validation), seed_(seed) {
  if (options.format == options::DataFormat::kSynthetic) {
    train_ = std::make_unique<SyntheticDigits>(0, SyntheticDigits::kTrainCount);
    test_ = std::make_unique<SyntheticDigits>(SyntheticDigits::kTrainCount,
                                              SyntheticDigits::kTestCount);
  } else {
    const DatasetFiles files = find_dataset_files(options);
    train_ = std::make_unique<IdxPair>(files.train, files.max_classes);
    test_ = std::make_unique<IdxPair>(files.test, files.max_classes);
  }
  train_count_ = limited(train_->outline(), options.limit_train, "limit_train");
  test_count_ = limited(test_->outline(), options.limit_test, "limit_test");
  check_one_geometry(train_->outline(), test_->outline());
  held_out_count(train_count_, validation_);
}

std::size_t DatasetReader::bytes() const {
  return aligned(train_->image_bytes()) + aligned(train_->label_bytes()) +
         aligned(test_->image_bytes()) + aligned(test_->label_bytes());
}

Dataset DatasetReader::read() {
  if (validation_ > 0) {  // moves samples, which those of a mapped file cannot
    const auto memory = std::make_shared<std::vector<std::uint8_t>>(bytes());
    return read_into(*memory, memory);
  }
  ImageSet train = train_->read();
  return finish(std::move(train), {}, test_->read());
}

Dataset DatasetReader::read_into(std::span<std::uint8_t> memory,
                                 const std::shared_ptr<const void>& owner) {
  const auto take = [&memory](std::size_t bytes) {
    const auto block = memory.first(bytes);
    memory = memory.subspan(aligned(bytes));
    return block;
  };
  const auto images = take(train_->image_bytes());
  const auto labels = take(train_->label_bytes());
  ImageSet train = train_->read_into(images, labels, owner);
  const auto test_images = take(test_->image_bytes());
  ImageSet test = test_->read_into(test_images, take(test_->label_bytes()), owner);
  if (validation_ == 0) return finish(std::move(train), {}, std::move(test));
  const ImageSet used = first_samples(train, train_count_, train.classes);
  HeldOut held = hold_out(used, images, labels, validation_, seed_);
  return finish(std::move(held.train), std::move(held.validation), std::move(test));
}

Dataset DatasetReader::finish(ImageSet train, ImageSet validation, ImageSet test) const {
  const std::int64_t classes = std::max(train.classes, test.classes);
  const std::int64_t count = train_count_ - validation.count;
  Dataset dataset{first_samples(std::move(train), count, classes), std::move(validation),
                  first_samples(std::move(test), test_count_, classes), ""};
  dataset.validation.classes = classes;
  Hasher hasher;
  hash_half(hasher, dataset.train);
  if (dataset.validation.count > 0) hash_half(hasher, dataset.validation);
  hash_half(hasher, dataset.test);
  dataset.hash = "xxh3-128:" + hasher.hex_digest();
  return dataset;
}

Dataset open_dataset(const options::DataOptions& options, std::int64_t seed) {
  return DatasetReader(options, seed).read();
}

}  // namespace mnist_train::data
