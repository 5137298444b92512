#include "data/sources.h"

#include <set>
#include <utility>

#include "data/class_names.h"
#include "data/encoded_source.h"
#include "data/find_files.h"
#include "data/idx_pair.h"
#include "data/image_folder.h"
#include "data/lmdb_set.h"
#include "data/reshaped_source.h"
#include "data/synthetic_digits.h"

namespace mnist_train::data {

namespace {

using settings::DataFormat;
using settings::DataLocation;
using settings::DataOptions;

std::vector<DataLocation> train_locations(const DataOptions& options) {
  if (!options.train_per_process.empty()) return options.train_per_process;
  return {options.train.value_or(DataLocation{})};
}

std::unique_ptr<ImageSource> reshaped(std::unique_ptr<ImageSource> source,
                                      const DataOptions& options) {
  if (!options.size && !options.channels) return source;
  return std::make_unique<ReshapedSource>(std::move(source), options);
}

Sources drawn(const DataOptions& options, bool with_test) {
  Sources sources;
  const auto digits = [&options](std::int64_t first, std::int64_t count) {
    return reshaped(std::make_unique<SyntheticDigits>(first, count), options);
  };
  sources.train.push_back(digits(0, SyntheticDigits::kTrainCount));
  if (with_test) {
    sources.test = digits(SyntheticDigits::kTrainCount, SyntheticDigits::kTestCount);
  }
  return sources;
}

Sources idx_pairs(const DataOptions& options, bool with_test) {
  Sources sources;
  sources.class_names = class_names(options);
  DatasetFiles files;
  for (const DataLocation& location : train_locations(options)) {
    DataOptions one = options;
    if (options.format) one.train = location;
    files = find_dataset_files(one);
    sources.train.push_back(
        reshaped(std::make_unique<IdxPair>(files.train, files.max_classes), options));
  }
  if (with_test) {
    sources.test = reshaped(std::make_unique<IdxPair>(files.test, files.max_classes), options);
  }
  return sources;
}

EncodedSplits image_folders(const DataOptions& options, bool with_test, BadSamples& bad) {
  EncodedSplits splits;
  std::vector<std::shared_ptr<ImageFolder>> folders;
  std::set<std::string> names;
  for (const DataLocation& location : train_locations(options)) {
    folders.push_back(std::make_shared<ImageFolder>(location.images, bad));
    names.insert(folders.back()->class_names().begin(), folders.back()->class_names().end());
  }
  splits.class_names.assign(names.begin(), names.end());
  for (const auto& folder : folders) {
    BadSamples missing(/*skip=*/true);  // one process's classes need not be all
    folder->use_classes(splits.class_names, missing);
    splits.train.push_back(folder);
  }
  if (!with_test) return splits;
  const auto test = std::make_shared<ImageFolder>(options.test->images, bad);
  test->use_classes(splits.class_names, bad);
  splits.test = test;
  return splits;
}

EncodedSplits lmdbs(const DataOptions& options, bool with_test, BadSamples& bad) {
  EncodedSplits splits;
  for (const DataLocation& location : train_locations(options)) {
    splits.train.push_back(std::make_shared<LmdbSet>(location.images, bad));
  }
  if (with_test) splits.test = std::make_shared<LmdbSet>(options.test->images, bad);
  return splits;
}

Sources decoded(EncodedSplits splits, const DataOptions& options, BadSamples& bad,
                const std::atomic<bool>* cancelled) {
  const ImageGeometry geometry = geometry_of(*splits.train.front(), options, bad);
  const auto source = [&](std::shared_ptr<const EncodedSet> set) {
    return std::make_unique<EncodedSource>(std::move(set), geometry, bad, cancelled);
  };
  Sources sources;
  for (auto& set : splits.train) sources.train.push_back(source(std::move(set)));
  if (splits.test) sources.test = source(std::move(splits.test));
  sources.class_names = std::move(splits.class_names);
  sources.encoded = true;
  return sources;
}

}  // namespace

EncodedSplits open_encoded(const DataOptions& options, bool with_test, BadSamples& bad) {
  return options.format == DataFormat::kLmdb ? lmdbs(options, with_test, bad)
                                             : image_folders(options, with_test, bad);
}

Sources open_sources(const DataOptions& options, bool with_test, BadSamples& bad,
                     const std::atomic<bool>* cancelled) {
  switch (options.format.value_or(DataFormat::kIdx)) {
    case DataFormat::kSynthetic:
      return drawn(options, with_test);
    case DataFormat::kImageFolder:
    case DataFormat::kLmdb:
      return decoded(open_encoded(options, with_test, bad), options, bad, cancelled);
    case DataFormat::kIdx:
      break;
  }
  return idx_pairs(options, with_test);
}

}  // namespace mnist_train::data
