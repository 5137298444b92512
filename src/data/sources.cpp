#include "data/sources.h"

#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <set>
#include <system_error>
#include <utility>

#include "base/error.h"
#include "base/file.h"
#include "base/file_kind.h"
#include "base/log.h"
#include "base/print.h"
#include "base/system.h"
#include "imaging/codec.h"

namespace mnist_train::data {

namespace fs = std::filesystem;
using settings::DataFormat;
using settings::DataLocation;
using settings::DataOptions;

const char* key_of(SplitName split) { return split == SplitName::kTrain ? "train" : "test"; }

void require_there(const DataLocation& location, SplitName split, DataFormat format) {
  const fs::path& path = location.images;
  std::error_code ignored;
  if (fs::exists(path, ignored)) return;
  const std::string key = key_of(split);
  // `convert` makes folders of the two keys' names.
  const std::string made = path.filename() == key ? path.parent_path().string() : "DIR";
  const std::string convert =
      shell_word(program_to_type()) + " convert --from idx:IDX_FOLDER --to ";
  std::string advice;
  if (format == DataFormat::kLmdb) {
    advice =
        "; `" + convert + shell_word("lmdb:" + made) + "` makes one of IDX files, such as MNIST's";
  } else if (format == DataFormat::kImageFolder) {
    advice =
        "; put folders of images (.jpg, .jpeg, .png) there, one for each class, or make them of "
        "IDX files by `" +
        convert + shell_word("image-folder:" + made) + "`";
  }
  fail_data(path.string() + ": no such file or folder (data." + key + ")" + advice);
}

void refuse_other_kind(const fs::path& path) {
  const auto kind = kind_of_file(path);
  if (!kind) return;
  fail_data(path.string() + ": is " + kind->name + ", not what data.format reads; " + kind->advice);
}

namespace {

/// The format and locations that the options name, directly or by a data set.
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

/// Opens a source. If that fails because a file of another kind is named, tells which kind.
std::shared_ptr<ImageSource> open_source(const NamedFiles& files, const DataLocation& location,
                                         SplitName split, BadSamples& bad) try {
  constexpr std::int64_t kDrawnToTrain = 60000;
  constexpr std::int64_t kDrawnToTest = 10000;
  switch (files.format) {
    case DataFormat::kIdx:
      return open_idx(find_idx_files(location, split), files.max_classes);
    case DataFormat::kCifar:
      return open_cifar(find_cifar_files(location, split));
    case DataFormat::kImageFolder:
      require_there(location, split, files.format);
      return open_image_folder(location.images, bad);
    case DataFormat::kLmdb:
      require_there(location, split, files.format);
      return open_lmdb(location.images, bad);
    case DataFormat::kSynthetic:
      break;
  }
  return split == SplitName::kTrain ? draw_digits(0, kDrawnToTrain)
                                    : draw_digits(kDrawnToTrain, kDrawnToTest);
} catch (const Error&) {
  refuse_other_kind(location.images);
  throw;
}

/// Numbers the classes of all sources alike if their files name them.
void number_classes(Sources& sources, BadSamples& bad) {
  std::set<std::string> names;
  for (const auto& source : sources.train_sources) {
    names.insert(source->class_names().begin(), source->class_names().end());
  }
  if (names.empty()) return;
  sources.class_names.assign(names.begin(), names.end());
  for (const auto& source : sources.train_sources) {
    BadSamples missing(/*skip=*/true);  // one process need not have all classes
    source->use_classes(sources.class_names, missing);
  }
  if (sources.test_source) sources.test_source->use_classes(sources.class_names, bad);
}

/// Returns the geometry of images once data.channels and data.size are applied.
ImageGeometry converted(ImageGeometry own, const DataOptions& options) {
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

/// Returns the geometry that the files or the options state, else that of the first good image.
ImageGeometry geometry_of(const ImageSource& source, const DataOptions& options, BadSamples& bad) {
  const ImageGeometry stated = converted(source.geometry().value_or(ImageGeometry{}), options);
  if (source.geometry() || (stated.fits_channels && stated.fits_size)) return stated;
  std::vector<std::uint8_t> buffer;
  for (std::int64_t sample = 0; sample < source.count(); ++sample) {
    try {
      const imaging::Image first =
          imaging::decode(source.read(sample, buffer), source.sample_name(sample));
      return converted({first.channels, first.height, first.width}, options);
    } catch (const Error&) {
      if (!bad.skips()) throw;  // otherwise noted when it is read
    }
  }
  fail_data(source.name() + ": none of its images can be decoded");
}

/// Checks stored pixels against the geometry; encoded images are checked when they are decoded.
void require_one_geometry(const Sources& sources, const ImageSource& source,
                          const DataOptions& options) {
  if (!source.geometry()) return;
  const std::int64_t channels = source.geometry()->channels;
  if ((options.size || options.channels) && channels != 1 && channels != 3) {
    fail_data(source.name() + ": images of " + std::to_string(channels) +
              " channels; data.size and data.channels are for 1 and 3");
  }
  const ImageGeometry own = converted(*source.geometry(), options);
  if (own.same_shape(sources.geometry)) return;
  fail_data(source.name() + ": images are " + own.text() + ", but those of " +
            sources.train_sources.front()->name() + " are " + sources.geometry.text() +
            " (channels x height x width)");
}

/// Checks that labels fit into bytes.
void require_few_classes(const ImageSource& source) {
  if (source.classes() <= ImageSource::kMostClasses) return;
  const auto& labels = source.labels();
  const auto greatest = std::max_element(labels.begin(), labels.end()) - labels.begin();
  fail_data(source.sample_name(greatest) + ": class " + std::to_string(source.classes() - 1) +
            "; at most " + std::to_string(ImageSource::kMostClasses) + " classes can be held");
}

[[noreturn]] void fail_label(const ImageSource& source, std::int32_t label,
                             const std::string& problem) {
  const auto& labels = source.labels();
  const auto sample = std::find(labels.begin(), labels.end(), label) - labels.begin();
  fail_data(source.label_name(sample) + ": label " + std::to_string(label) + problem);
}

/// Refuses a training set that has samples of fewer than half of its classes: one wrong label would
/// add classes without samples.
void require_few_gaps(const Sources& sources) {
  std::set<std::int32_t> labels;
  const ImageSource* with_greatest = sources.train_sources.front().get();
  for (const auto& source : sources.train_sources) {
    labels.insert(source->labels().begin(), source->labels().end());
    if (source->classes() > with_greatest->classes()) with_greatest = source.get();
  }
  const std::int32_t greatest = *labels.rbegin();
  if (2 * static_cast<std::int64_t>(labels.size()) > greatest) return;
  fail_label(*with_greatest, greatest,
             " makes " + std::to_string(greatest + 1) +
                 " classes, but the training set has samples of only " +
                 std::to_string(labels.size()) + "; classes are numbered from 0 without gaps");
}

/// Refuses a test sample whose class the training set does not have.
void require_trained_classes(const Sources& sources) {
  std::int64_t classes = 0;
  for (const auto& source : sources.train_sources) classes = std::max(classes, source->classes());
  for (const std::int32_t label : sources.test_source->labels()) {
    if (label < classes) continue;
    fail_label(*sources.test_source, label,
               ", a class that the training set does not have (" +
                   sources.train_sources.front()->name() + " has 0 to " +
                   std::to_string(classes - 1) + ")");
  }
}

}  // namespace

Sources open_sources(const DataOptions& options, bool with_test, BadSamples& bad) {
  const NamedFiles files = named_files(options);
  Sources sources;
  sources.class_names = files.class_names;
  for (const DataLocation& location : files.train_locations) {
    sources.train_sources.push_back(open_source(files, location, SplitName::kTrain, bad));
  }
  std::vector<std::shared_ptr<ImageSource>> all = sources.train_sources;
  if (with_test) {
    sources.test_source = open_source(files, files.test_location, SplitName::kTest, bad);
    all.push_back(sources.test_source);
  }
  number_classes(sources, bad);
  sources.geometry = geometry_of(*sources.train_sources.front(), options, bad);
  for (const auto& source : all) {
    require_one_geometry(sources, *source, options);
    require_few_classes(*source);
  }
  // Of these formats, and unless the data set is known by name, labels alone tell the classes.
  if (files.format == DataFormat::kLmdb ||
      (files.format == DataFormat::kIdx && files.max_classes == ImageSource::kMostClasses)) {
    require_few_gaps(sources);
  }
  if (with_test) require_trained_classes(sources);
  return sources;
}

}  // namespace mnist_train::data
