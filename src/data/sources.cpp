#include "data/sources.h"

#include <set>

#include "base/file.h"
#include "base/print.h"
#include "base/system.h"
#include "data/dataset.h"

namespace mnist_train::data {

using settings::DataFormat;
using settings::DataLocation;
using settings::DataOptions;

const char* key_of(SplitName split) { return split == SplitName::kTrain ? "train" : "test"; }

void require_there(const DataLocation& location, SplitName split, DataFormat format) {
  const fs::path& path = location.images;
  if (is_there(path)) return;
  const std::string key = key_of(split);
  // `convert` creates folders named after the two keys.
  const std::string made = path.filename() == key ? path.parent_path().string() : "DIR";
  const auto convert = [&](const std::string& to) {
    return fmt::format("`{} convert --from idx:IDX_FOLDER --to {}`", shell_word(program_to_type()),
                       shell_word(to + made));
  };
  std::string advice;
  if (format == DataFormat::kImageList) {
    advice = "; expected a CSV file with the columns path and label";
  } else if (format == DataFormat::kLmdb) {
    advice = "; " + convert("lmdb:") + " creates one from IDX files, such as MNIST's";
  } else if (format == DataFormat::kImageFolder) {
    advice = fmt::format(
        "; put folders of pictures ({}) there, one per class, or create them from IDX files with "
        "{}",
        imaging::kPictureExtensions, convert("image-folder:"));
  }
  fail_data("{}: no such file or folder (data.{}){}", path.string(), key, advice);
}

void refuse_other_kind(const fs::path& path) {
  const auto kind = kind_of_file(path);
  if (!kind) return;
  fail_data("{}: is {}, which cannot be used here; {}", path.string(), kind->name, kind->advice);
}

namespace {

/// The format and locations that the options specify, directly or through a named data set.
struct NamedFiles {
  DataFormat format;
  std::vector<DataLocation> train_locations;
  DataLocation test_location;
  std::int64_t max_classes = ImageSource::kMaxClasses;
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

/// Opens a source. If that fails because the file has an unsupported format, the message names it.
/// `trained_on`: the first training set, or null if this is it.
std::shared_ptr<ImageSource> open_source(const NamedFiles& files, const DataLocation& location,
                                         SplitName split, const ImageSource* trained_on,
                                         BadSamples& bad) try {
  constexpr std::int64_t kDrawnToTrain = 60000;
  constexpr std::int64_t kDrawnToTest = 10000;
  if (files.format != DataFormat::kSynthetic) require_there(location, split, files.format);
  switch (files.format) {
    case DataFormat::kIdx:
      return open_idx(find_idx_files(location, split), files.max_classes);
    case DataFormat::kCifar:
      return open_cifar(find_cifar_files(location, split));
    case DataFormat::kImageFolder:
      return open_image_folder(location.images, bad);
    case DataFormat::kImageList: {
      ListKind kind{split == SplitName::kTest};
      if (trained_on != nullptr) kind.named = !trained_on->class_names().empty();
      return open_image_list(location.images, kind, bad);
    }
    case DataFormat::kLmdb:
      return open_lmdb(location.images, bad);
    case DataFormat::kSynthetic:
      break;
  }
  return split == SplitName::kTrain ? draw_digits(0, kDrawnToTrain)
                                    : draw_digits(kDrawnToTrain, kDrawnToTest);
} catch (const Error&) {
  if (files.format != DataFormat::kImageList) refuse_other_kind(location.images);
  throw;
}

/// Numbers the classes of all sources consistently if their files have class names.
void number_classes(Sources& sources, const DatasetRecord* record, BadSamples& bad) {
  if (record != nullptr && !sources.train_sources.front()->class_names().empty()) {
    sources.class_names = record->class_names;
    for (const auto& source : sources.train_sources) source->use_known_classes(record->class_names);
    return;
  }
  std::set<std::string> names;
  for (const auto& source : sources.train_sources) {
    names.insert(source->class_names().begin(), source->class_names().end());
  }
  if (names.empty()) return;
  sources.class_names.assign(names.begin(), names.end());
  for (const auto& source : sources.train_sources) {
    BadSamples missing(/*skip=*/true);  // a single process may lack classes
    source->use_classes(sources.class_names, missing);
  }
  if (sources.test_source) sources.test_source->use_classes(sources.class_names, bad);
}

/// Returns the geometry after data.channels and data.size are applied.
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
  prepare_pictures(own, options);
  return own;
}

/// Returns the geometry that the files or the options specify, or that of the first good image.
ImageGeometry geometry_of(const ImageSource& source, const DataOptions& options, BadSamples& bad) {
  const ImageGeometry stated = converted(source.geometry().value_or(ImageGeometry{}), options);
  if (source.geometry() || (stated.fits_channels && stated.fits_size)) return stated;
  Buffer buffer;
  for (std::int64_t sample = 0; sample < source.count() && !bad.is_full(); ++sample) {
    try {
      const imaging::Image first =
          imaging::decode(source.read(sample, buffer), source.sample_name(sample), stated.decode);
      return converted({first.channels, first.height, first.width}, options);
    } catch (const Error& error) {
      if (!bad.skips()) bad.add(error.what());  // otherwise reported when it is read
    }
  }
  fail_data("{}: none of its images can be decoded", source.name());
}

/// Checks stored pixels against the geometry; encoded images are checked when decoded.
void require_one_geometry(const Sources& sources, const ImageSource& source,
                          const DataOptions& options) {
  if (!source.geometry()) return;
  const std::int64_t channels = source.geometry()->channels;
  if ((options.size || options.channels) && channels != 1 && channels != 3) {
    fail_data("{}: images with {}; data.size and data.channels need 1 or 3", source.name(),
              counted(channels, "channel"));
  }
  const ImageGeometry own = converted(*source.geometry(), options);
  if (own.same_shape(sources.geometry)) return;
  fail_data("{}: images are {}, but those of {} are {} (channels x height x width)", source.name(),
            own.text(), sources.train_sources.front()->name(), sources.geometry.text());
}

[[noreturn]] void fail_label(const ImageSource& source, std::int64_t label,
                             const std::string& problem) {
  const auto sample = std::ranges::find(source.labels(), label) - source.labels().begin();
  fail_data("{}: label {}{}", source.label_name(sample), label, problem);
}

void require_few_classes(const ImageSource& source) {
  const std::int64_t classes = source.classes();
  if (classes <= ImageSource::kMaxClasses) return;
  const auto most = fmt::format("; at most {} classes are supported", ImageSource::kMaxClasses);
  if (source.class_names().empty()) fail_label(source, classes - 1, most);
  fail_data("{}: has {} class folders{}", source.name(), classes, most);
}

const ImageSource& most_classes(const Sources& sources) {
  return **std::ranges::max_element(sources.train_sources, {},
                                    [](const auto& source) { return source->classes(); });
}

/// Rejects training sets with samples for fewer than half of their classes: a single wrong label
/// can add many empty classes.
void require_few_gaps(const Sources& sources) {
  std::set<std::int32_t> labels;
  for (const auto& source : sources.train_sources) {
    labels.insert(source->labels().begin(), source->labels().end());
  }
  const std::int32_t greatest = *labels.rbegin();
  if (2 * std::ssize(labels) > greatest) return;
  fail_label(
      most_classes(sources), greatest,
      fmt::format(" implies {} classes, but the training set has samples of only {}; classes "
                  "are numbered from 0 without gaps",
                  greatest + 1, labels.size()));
}

/// Rejects test samples whose class is not in the training set.
void require_trained_classes(const Sources& sources) {
  const std::int64_t classes = most_classes(sources).classes();
  for (const std::int32_t label : sources.test_source->labels()) {
    if (label < classes) continue;
    fail_label(*sources.test_source, label,
               fmt::format(", a class that the training set does not have ({} has 0 to {})",
                           sources.train_sources.front()->name(), classes - 1));
  }
}

/// Returns whether the test set has its own files.
bool has_test_files(const DataOptions& options) {
  const bool is_named = !options.format || options.format == DataFormat::kSynthetic;
  return is_named || options.test.has_value();
}

/// Rejects options that conflict with a list's `holdout` column, and a list without a test set.
void check_parts(const DataOptions& options, const Sources& sources, bool with_test) {
  const ImageSource& source = *sources.train_sources.front();
  const auto names = [&source](Part part) { return std::ranges::count(source.parts(), part) > 0; };
  const auto refuse = [&](const char* key, const char* part) {
    throw ConfigKeyError(
        fmt::format("/data/{}: {} has rows with holdout \"{}\", which define this set; "
                    "remove data.{} or the column",
                    key, source.name(), part, key));
  };
  const bool has_option = options.test || options.test_fraction > 0;
  if (names(Part::kTest) && has_option) refuse("test", "test");
  if (names(Part::kValidation) && options.validation > 0) refuse("validation", "validation");
  if (sources.train_sources.size() > 1 && (names(Part::kTest) || names(Part::kValidation))) {
    throw ConfigKeyError("/data/train_per_process: " + source.name() +
                         " has a holdout column, which only data.train supports");
  }
  if (!with_test || has_option || has_test_files(options) || names(Part::kTest)) return;
  throw ConfigKeyError(
      "/data: requires test: a list, a fraction of train to hold out, such as 0.2, or a holdout "
      "column in " +
      source.name());
}

}  // namespace

Sources open_sources(const DataOptions& options, bool with_test, const DatasetRecord* record,
                     BadSamples& bad) {
  const NamedFiles files = named_files(options);
  Sources sources;
  sources.class_names = files.class_names;
  for (const DataLocation& location : files.train_locations) {
    const ImageSource* first =
        sources.train_sources.empty() ? nullptr : sources.train_sources.front().get();
    sources.train_sources.push_back(open_source(files, location, SplitName::kTrain, first, bad));
  }
  check_parts(options, sources, with_test);
  std::vector<std::shared_ptr<ImageSource>> all = sources.train_sources;
  if (with_test && has_test_files(options)) {
    sources.test_source = open_source(files, files.test_location, SplitName::kTest,
                                      sources.train_sources.front().get(), bad);
    all.push_back(sources.test_source);
  }
  number_classes(sources, record, bad);
  sources.geometry = geometry_of(*sources.train_sources.front(), options, bad);
  for (const auto& source : all) {
    require_one_geometry(sources, *source, options);
    require_few_classes(*source);
  }
  // In these formats, unless the data set is known by name, only the labels determine the classes.
  const bool is_numbered_list =
      files.format == DataFormat::kImageList && sources.class_names.empty();
  if (files.format == DataFormat::kLmdb || is_numbered_list ||
      (files.format == DataFormat::kIdx && files.max_classes == ImageSource::kMaxClasses)) {
    require_few_gaps(sources);
  }
  if (sources.test_source) require_trained_classes(sources);
  return sources;
}

}  // namespace mnist_train::data
