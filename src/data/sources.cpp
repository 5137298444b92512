#include "data/sources.h"

#include <algorithm>
#include <set>
#include <utility>

#include "base/error.h"
#include "data/cifar_source.h"
#include "data/find_files.h"
#include "data/idx_source.h"
#include "data/image_folder.h"
#include "data/lmdb_source.h"
#include "data/synthetic_digits.h"
#include "imaging/codec.h"
#include "settings/named_datasets.h"

namespace mnist_train::data {

namespace {

using settings::DataFormat;
using settings::DataLocation;
using settings::DataOptions;

/// What the options name: a format and places, or a data set whose row says them.
struct NamedFiles {
  DataFormat format;
  std::vector<DataLocation> train_locations;
  DataLocation test_location;
  std::int64_t max_classes = ImageSource::kMostClasses;
  std::vector<std::string> class_names{};
};

NamedFiles named_files(const DataOptions& options) {
  if (!options.format) {
    const settings::NamedDataset& row = settings::named_dataset(*options.dataset);
    const DataLocation folder{find_named_dataset(row, options.root), {}};
    return {row.format, {folder}, folder, row.classes, row.class_names};
  }
  NamedFiles files{*options.format, options.train_per_process,
                   options.test.value_or(DataLocation{})};
  if (files.train_locations.empty())
    files.train_locations.push_back(options.train.value_or(DataLocation{}));
  return files;
}

std::shared_ptr<ImageSource> open_format(const NamedFiles& files, const DataLocation& location,
                                         SplitName split, BadSamples& bad) {
  switch (files.format) {
    case DataFormat::kIdx:
      return std::make_shared<IdxSource>(find_idx_files(location, split), files.max_classes);
    case DataFormat::kCifar:
      return std::make_shared<CifarSource>(find_cifar_files(location, split));
    case DataFormat::kImageFolder:
      require_there(location, split, files.format);
      return std::make_shared<ImageFolder>(location.images, bad);
    case DataFormat::kLmdb:
      require_there(location, split, files.format);
      return std::make_shared<LmdbSource>(location.images, bad);
    case DataFormat::kSynthetic:
      break;
  }
  return split == SplitName::kTrain
             ? std::make_shared<SyntheticDigits>(0, SyntheticDigits::kTrainCount)
             : std::make_shared<SyntheticDigits>(SyntheticDigits::kTrainCount,
                                                 SyntheticDigits::kTestCount);
}

/// Opens a source. If that fails because a file of another kind is named, says which kind.
std::shared_ptr<ImageSource> open_source(const NamedFiles& files, const DataLocation& location,
                                         SplitName split, BadSamples& bad) try {
  return open_format(files, location, split, bad);
} catch (const Error&) {
  refuse_other_kind(location.images);
  throw;
}

/// Numbers the classes of all sources alike, where they have names of their own.
void number_classes(Sources& sources, BadSamples& bad) {
  std::set<std::string> names;
  for (const auto& source : sources.train_sources) {
    names.insert(source->class_names().begin(), source->class_names().end());
  }
  if (names.empty()) return;
  sources.class_names.assign(names.begin(), names.end());
  for (const auto& source : sources.train_sources) {
    BadSamples missing(/*skip=*/true);  // one process's classes need not be all
    source->use_classes(sources.class_names, missing);
  }
  if (sources.test_source) sources.test_source->use_classes(sources.class_names, bad);
}

/// What images of the geometry `own` are brought to by data.channels and data.size.
ImageGeometry wanted_geometry(ImageGeometry own, const settings::DataOptions& options) {
  if (options.channels) {
    own.channels = *options.channels;
    own.fits_channels = true;
  }
  if (options.size) {
    own.height = options.size->height;
    own.width = options.size->width;
    own.fits_size = true;
  }
  return own;
}

/// The geometry of the first good image, where the options do not say all of it.
ImageGeometry geometry_of(const ImageSource& source, const DataOptions& options, BadSamples& bad) {
  const ImageGeometry wanted =
      wanted_geometry(source.geometry().value_or(ImageGeometry{}), options);
  if (source.geometry() || (wanted.fits_channels && wanted.fits_size)) return wanted;
  std::vector<std::uint8_t> buffer;
  for (std::int64_t sample = 0; sample < source.count(); ++sample) {
    try {
      const imaging::Image first =
          imaging::decode(source.read(sample, buffer), source.sample_name(sample));
      return wanted_geometry({first.channels, first.height, first.width}, options);
    } catch (const Error&) {
      if (!bad.skips()) throw;  // else it is noted when it is read
    }
  }
  throw Error(ExitCode::kData, source.name() + ": none of its images can be decoded");
}

/// Returns the name of a sample for messages about its label.
std::string name_of_label(const NamedFiles& files, const DataLocation& location, SplitName split,
                          const ImageSource& source, std::size_t sample) {
  if (files.format != DataFormat::kIdx) {
    return source.sample_name(static_cast<std::int64_t>(sample)) + ": label ";
  }
  return find_idx_files(location, split).labels.string() + ": sample " + std::to_string(sample) +
         ": label ";
}

/// Returns whether nothing but the labels says how many classes there are.
bool counts_labels(const NamedFiles& files) {
  return files.format == DataFormat::kLmdb ||
         (files.format == DataFormat::kIdx && files.max_classes == ImageSource::kMostClasses);
}

/// Refuses a training set whose labels leave out more classes than they name: one wrong label
/// would make a network of classes that nothing is known of.
void require_few_gaps(const NamedFiles& files, const Sources& sources) {
  std::set<std::int32_t> labels;
  std::size_t greatest_source = 0;
  for (std::size_t i = 0; i < sources.train_sources.size(); ++i) {
    const auto& source = *sources.train_sources[i];
    labels.insert(source.labels().begin(), source.labels().end());
    if (source.classes() > sources.train_sources[greatest_source]->classes()) greatest_source = i;
  }
  const std::int32_t greatest = *labels.rbegin();
  if (2 * static_cast<std::int64_t>(labels.size()) > greatest) return;
  const auto& source = *sources.train_sources[greatest_source];
  const auto place = std::find(source.labels().begin(), source.labels().end(), greatest);
  throw Error(ExitCode::kData,
              name_of_label(files, files.train_locations[greatest_source], SplitName::kTrain,
                            source, static_cast<std::size_t>(place - source.labels().begin())) +
                  std::to_string(greatest) + " makes " + std::to_string(greatest + 1) +
                  " classes, but the training set has samples of only " +
                  std::to_string(labels.size()) + "; classes are numbered from 0 without gaps");
}

/// Refuses a test sample whose class the training set does not have.
void require_trained_classes(const NamedFiles& files, const Sources& sources) {
  std::int64_t classes = 0;
  for (const auto& source : sources.train_sources) classes = std::max(classes, source->classes());
  const std::vector<std::int32_t>& labels = sources.test_source->labels();
  const auto unknown = std::find_if(labels.begin(), labels.end(),
                                    [&](std::int32_t label) { return label >= classes; });
  if (unknown == labels.end()) return;
  throw Error(ExitCode::kData,
              name_of_label(files, files.test_location, SplitName::kTest, *sources.test_source,
                            static_cast<std::size_t>(unknown - labels.begin())) +
                  std::to_string(*unknown) + ", a class that the training set does not have (" +
                  sources.train_sources.front()->name() + " has 0 to " +
                  std::to_string(classes - 1) + ")");
}

/// Encoded images are compared one by one when they are decoded, stored ones here.
void require_one_geometry(const Sources& sources, const ImageSource& source,
                          const DataOptions& options) {
  if (!source.geometry()) return source.require_classes_fit();
  const std::int64_t channels = source.geometry()->channels;
  if ((options.size || options.channels) && channels != 1 && channels != 3) {
    throw Error(ExitCode::kData, source.name() + ": images of " + std::to_string(channels) +
                                     " channels; data.size and data.channels are for 1 and 3");
  }
  const ImageGeometry own = wanted_geometry(*source.geometry(), options);
  if (own.same_shape(sources.geometry)) return;
  throw Error(ExitCode::kData, source.name() + ": images are " + own.text() + ", but those of " +
                                   sources.train_sources.front()->name() + " are " +
                                   sources.geometry.text() + " (channels x height x width)");
}

}  // namespace

Sources open_sources(const DataOptions& options, bool with_test, BadSamples& bad) {
  const NamedFiles files = named_files(options);
  Sources sources;
  sources.class_names = files.class_names;
  for (const DataLocation& location : files.train_locations) {
    sources.train_sources.push_back(open_source(files, location, SplitName::kTrain, bad));
  }
  if (with_test)
    sources.test_source = open_source(files, files.test_location, SplitName::kTest, bad);
  number_classes(sources, bad);
  sources.geometry = geometry_of(*sources.train_sources.front(), options, bad);
  for (const auto& source : sources.train_sources) require_one_geometry(sources, *source, options);
  if (sources.test_source) require_one_geometry(sources, *sources.test_source, options);
  if (counts_labels(files)) require_few_gaps(files, sources);
  if (sources.test_source) require_trained_classes(files, sources);
  return sources;
}

}  // namespace mnist_train::data
