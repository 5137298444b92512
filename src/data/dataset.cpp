#include "data/dataset.h"

#include <algorithm>
#include <array>
#include <optional>
#include <string>
#include <utility>

#include "base/error.h"
#include "base/hash.h"
#include "base/system.h"
#include "data/hold_out.h"
#include "data/host_memory.h"
#include "data/image_geometry.h"
#include "data/streamed_dataset.h"

namespace mnist_train::data {

namespace {

std::int64_t limited(const ImageSet& outline, std::optional<std::int64_t> limit, const char* key) {
  if (!limit) return outline.count;
  if (*limit < 1 || *limit > outline.count) {
    throw Error(ExitCode::kData, outline.source + ": data." + key + " is " +
                                     std::to_string(*limit) + ", but the file has " +
                                     std::to_string(outline.count) + " images");
  }
  return *limit;
}

std::string text_of(const ImageSet& set) {
  return geometry_text(set.channels, set.height, set.width);
}

void check_one_geometry(const ImageSet& train, const ImageSet& test) {
  if (train.channels == test.channels && train.height == test.height && train.width == test.width) {
    return;
  }
  throw Error(ExitCode::kData, test.source + ": images are " + text_of(test) + ", but those of " +
                                   train.source + " are " + text_of(train) +
                                   " (channels x height x width)");
}

ImageSet first_samples(ImageSet set, std::int64_t count, std::int64_t classes) {
  set.count = count;
  set.classes = classes;
  set.images = set.images.first(static_cast<std::size_t>(count * set.bytes_per_image()));
  set.labels = set.labels.first(static_cast<std::size_t>(count));
  return set;
}

void hash_split(Hasher& hasher, const ImageSet& set) {
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

DatasetReader::DatasetReader(const settings::DataOptions& options, std::int64_t seed, Splits splits,
                             const std::atomic<bool>* cancelled)
    : validation_(splits == Splits::kTest ? 0 : options.validation),
      seed_(seed),
      bad_(options.on_bad_sample == settings::OnBadSample::kSkip),
      sources_(open_sources(options, splits != Splits::kTrain, bad_, cancelled)) {
  count(options);
  if (splits == Splits::kTest && sources_.encoded) {
    for (const auto& source : sources_.train) source->limit(0);
    train_count_ = 0;
  }
  if (sources_.encoded) require_memory();
}

void DatasetReader::count(const settings::DataOptions& options) {
  const ImageSet& first = sources_.train.front()->outline();
  for (const auto& source : sources_.train) {
    check_one_geometry(first, source->outline());
    train_count_ += source->outline().count;
  }
  if (options.limit_train) {
    train_count_ = limited(first, options.limit_train, "limit_train");
    sources_.train.front()->limit(train_count_);
  }
  held_out_count(train_count_, validation_);
  if (!sources_.test) return;
  test_count_ = limited(sources_.test->outline(), options.limit_test, "limit_test");
  sources_.test->limit(test_count_);
  check_one_geometry(first, sources_.test->outline());
}

/// Encoded images say what they take only when it is too late.
void DatasetReader::require_memory() const {
  const auto available = static_cast<std::int64_t>(system_memory().available);
  if (static_cast<std::int64_t>(bytes()) <= available) return;
  const ImageSet& train = sources_.train.front()->outline();
  throw Error(
      ExitCode::kData,
      train.source + ": decoded to " + geometry_text(train.channels, train.height, train.width) +
          ", the images take " + std::to_string(bytes() >> 20U) + " MiB, but " +
          std::to_string(available >> 20) +
          " MiB of memory are free; data.decode \"stream\" decodes as training goes, a smaller "
          "data.size or data.limit_train takes less");
}

std::size_t DatasetReader::bytes() const {
  std::size_t images = 0;
  std::size_t labels = 0;
  for (const auto& source : sources_.train) {
    images += source->image_bytes();
    labels += source->label_bytes();
  }
  const std::size_t train = cache_aligned(images) + cache_aligned(labels);
  if (!sources_.test) return train;
  return train + cache_aligned(sources_.test->image_bytes()) +
         cache_aligned(sources_.test->label_bytes());
}

Dataset DatasetReader::read() {
  // Moves samples, which those of a mapped file cannot; or puts sets behind one another.
  if (validation_ > 0 || sources_.train.size() > 1) {
    const auto memory = reserve_memory(bytes(), sources_.train.front()->outline().source);
    return read_into({memory.get(), bytes()}, memory);
  }
  ImageSet train = sources_.train.front()->read();
  return finish(std::move(train), {}, sources_.test ? sources_.test->read() : ImageSet{});
}

/// All training sets, one behind the other.
ImageSet DatasetReader::read_train(std::span<std::uint8_t> images, std::span<std::uint8_t> labels,
                                   const std::shared_ptr<const void>& owner) {
  if (sources_.train.size() == 1) return sources_.train.front()->read_into(images, labels, owner);
  ImageSet all = sources_.train.front()->outline();
  all.count = 0;
  const auto size = static_cast<std::size_t>(all.bytes_per_image());
  for (const auto& source : sources_.train) {
    const auto done = static_cast<std::size_t>(all.count);
    const ImageSet part = source->read_into(images.subspan(done * size, source->image_bytes()),
                                            labels.subspan(done, source->label_bytes()), owner);
    train_parts_.push_back(part.count);
    all.count += part.count;
    all.classes = std::max(all.classes, part.classes);
  }
  all.images = images;
  all.labels = labels;
  all.owner = owner;
  return all;
}

Dataset DatasetReader::read_into(std::span<std::uint8_t> memory,
                                 const std::shared_ptr<const void>& owner) {
  const auto take = [&memory](std::size_t bytes) {
    const auto block = memory.first(bytes);
    memory = memory.subspan(cache_aligned(bytes));
    return block;
  };
  std::size_t image_bytes = 0;
  std::size_t label_bytes = 0;
  for (const auto& source : sources_.train) {
    image_bytes += source->image_bytes();
    label_bytes += source->label_bytes();
  }
  const auto images = take(image_bytes);
  const auto labels = take(label_bytes);
  ImageSet train = read_train(images, labels, owner);
  ImageSet test;
  if (sources_.test) {
    const auto test_images = take(sources_.test->image_bytes());
    test = sources_.test->read_into(test_images, take(sources_.test->label_bytes()), owner);
  }
  if (validation_ == 0) return finish(std::move(train), {}, std::move(test));
  const ImageSet used = first_samples(train, std::min(train_count_, train.count), train.classes);
  HeldOut held = hold_out(used, images, labels, validation_, seed_);
  return finish(std::move(held.train), std::move(held.validation), std::move(test));
}

Dataset DatasetReader::finish(ImageSet train, ImageSet validation, ImageSet test) const {
  const std::int64_t classes = std::max(train.classes, test.classes);
  // Fewer than were counted where bad ones are skipped.
  const std::int64_t count = std::min(train_count_ - validation.count, train.count);
  const std::int64_t test_count = std::min(test_count_, test.count);
  Dataset dataset{first_samples(std::move(train), count, classes), std::move(validation),
                  first_samples(std::move(test), test_count, classes), ""};
  dataset.validation.classes = classes;
  dataset.class_names = sources_.class_names;
  dataset.skipped = bad_.skipped();
  dataset.train_parts = train_parts_;
  Hasher hasher;
  hash_split(hasher, dataset.train);
  if (dataset.validation.count > 0) hash_split(hasher, dataset.validation);
  hash_split(hasher, dataset.test);
  dataset.hash = hasher.named_digest();
  return dataset;
}

Dataset open_dataset(const settings::DataOptions& options, std::int64_t seed, Splits splits) {
  if (options.decode != settings::Decode::kOnce) {
    return StreamedDataset(options, seed, splits).dataset();
  }
  return DatasetReader(options, seed, splits).read();
}

}  // namespace mnist_train::data
