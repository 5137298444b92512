#include "data/sources.h"

#include <spdlog/fmt/ranges.h>
#include <spdlog/spdlog.h>

#include <cstdlib>
#include <functional>
#include <set>
#include <sstream>
#include <system_error>

#include "base/file.h"
#include "base/print.h"
#include "base/system.h"
#include "data/dataset.h"

namespace mnist_train::data {

using settings::DataFormat;
using settings::DataLocation;
using settings::DataOptions;

namespace {

const char* key_of(SplitName split) { return split == SplitName::kTrain ? "train" : "test"; }

/// File names that identify a split in a folder.
struct SplitNames {
  std::vector<std::string_view> prefixes;
  std::vector<std::string> cifar_files;
};

const SplitNames& names_of(SplitName split) {
  static const SplitNames kTrain{{"train"},
                                 {"data_batch_1.bin", "data_batch_2.bin", "data_batch_3.bin",
                                  "data_batch_4.bin", "data_batch_5.bin"}};
  static const SplitNames kTest{{"t10k", "test"}, {"test_batch.bin"}};
  return split == SplitName::kTrain ? kTrain : kTest;
}

bool is_file(const fs::path& path) { return path_exists(path) && !is_folder(path); }

bool replace_last(std::string& text, std::string_view from, std::string_view to) {
  const std::size_t at = text.rfind(from);
  if (at == std::string::npos) return false;
  text.replace(at, from.size(), to);
  return true;
}

/// Returns a stem that is the same for all spellings of a file name: with or without ".gz", and
/// with "-idx" (names of MNIST's archives) or ".idx" (names in their gzip headers).
std::string stem_of(const fs::path& path) {
  std::string stem = path.filename().string();
  if (stem.ends_with(".gz")) stem.resize(stem.size() - 3);
  replace_last(stem, ".idx", "-idx");
  return stem;
}

/// Returns the candidate IDX files whose names contain `word`, by stem: in the folder, or in
/// subfolders with the file's own name, as Kaggle packs them. Files in the folder take precedence
/// over subfolders', and raw files over compressed ones. Empty if the folder cannot be listed.
std::map<std::string, fs::path> files_by_stem(const fs::path& folder, std::string_view word) {
  std::map<std::string, fs::path> files;
  // Sorted, so a raw file comes before its .gz.
  const std::vector<fs::path> paths = paths_in(folder.empty() ? "." : folder);
  const auto is_candidate = [&](const fs::path& path) {
    const std::string name = path.filename().string();
    return !name.starts_with('.') && name.find(word) != std::string::npos;
  };
  for (const fs::path& path : paths) {
    if (is_candidate(path) && is_file(path)) files.emplace(stem_of(path), path);
  }
  for (const fs::path& path : paths) {
    if (!is_candidate(path) || !is_folder(path)) continue;
    for (const fs::path& inner : paths_in(path)) {
      if (stem_of(inner) == stem_of(path) && is_file(inner)) files.emplace(stem_of(path), inner);
    }
  }
  return files;
}

std::string labels_stem(const fs::path& images) {
  std::string stem = stem_of(images);
  if (!replace_last(stem, "images", "labels")) {
    fail_data(
        "{}: cannot infer the labels file, because the name does not contain \"images\"; give both "
        "files: {{\"images\": FILE, \"labels\": FILE}}",
        images.string());
  }
  if (!replace_last(stem, "idx3", "idx1")) replace_last(stem, "idx4", "idx1");
  return stem;
}

/// Finds the labels in the images' folder, or next to it if the folder's name contains "images".
std::optional<fs::path> labels_of(const fs::path& images) {
  const fs::path folder = images.parent_path();
  const auto files = files_by_stem(folder, "labels");
  if (const auto found = files.find(labels_stem(images)); found != files.end()) {
    return found->second;
  }
  if (folder.filename().string().find("images") == std::string::npos) return std::nullopt;
  return labels_of(folder);
}

bool has_labels(const std::pair<const std::string, fs::path>& images) {
  return labels_of(images.second).has_value();
}

/// Returns the likely reason why a folder has no images: it cannot be listed or has other files.
std::string no_images_hint(const fs::path& folder) {
  std::error_code error;
  (void)paths_in(folder, &error);
  return error ? "; the folder cannot be listed: " + error.message() : other_files_in(folder);
}

/// Returns the images file of a split: the one with a prefix of that split, or else the only one.
fs::path images_in(const fs::path& folder, SplitName split) {
  const auto& prefixes = names_of(split).prefixes;
  const SplitName other = split == SplitName::kTrain ? SplitName::kTest : SplitName::kTrain;
  // At the start of the name or after a hyphen, as in emnist-letters-train-images-idx3-ubyte.
  const auto begins_with = [](const std::vector<std::string_view>& wanted) {
    return [&wanted](const auto& file) {
      return std::ranges::any_of(wanted, [&](std::string_view prefix) {
        return file.first.starts_with(prefix) ||
               file.first.find(std::string("-").append(prefix)) != std::string::npos;
      });
    };
  };
  auto files = files_by_stem(folder, "images");
  std::erase_if(files, begins_with(names_of(other).prefixes));
  const auto prefer = [&files](const auto& passes) {  // no effect if none passes
    if (std::ranges::any_of(files, passes)) std::erase_if(files, std::not_fn(passes));
  };
  prefer(begins_with(prefixes));
  prefer(
      [&](const auto& file) { return file.second.parent_path() == (folder / "").parent_path(); });
  if (files.size() > 1) prefer(has_labels);  // the rest may be leftovers
  if (files.empty()) {
    fail_data(
        "{}: no images for data.{} in this folder; expected a file such as "
        "{}-images-idx3-ubyte.gz with its labels{}",
        folder.string(), key_of(split), prefixes[0], no_images_hint(folder));
  }
  if (files.size() > 1) {
    std::vector<std::string> names;
    for (const auto& [stem, file] : files) names.push_back(file.filename().string());
    fail_data("{}: several files may contain the images ({}); set data.{} to one of them",
              folder.string(), fmt::join(names, ", "), key_of(split));
  }
  return files.begin()->second;
}

/// Returns whether a folder contains a data set's files: images with labels, or a CIFAR batch.
bool holds_images(const fs::path& folder, DataFormat format) {
  if (format == DataFormat::kIdx) {
    return std::ranges::any_of(files_by_stem(folder, "images"), has_labels);
  }
  return path_exists(folder / names_of(SplitName::kTrain).cifar_files.front()) ||
         path_exists(folder / names_of(SplitName::kTest).cifar_files.front());
}

/// Returns the folders that contain images, sorted: the given folder, or those up to `levels`
/// levels below it, such as torchvision's MNIST/raw.
std::vector<fs::path> image_folders(const fs::path& folder, DataFormat format, int levels = 2) {
  if (holds_images(folder, format)) return {folder};
  std::vector<fs::path> found;
  if (levels == 0) return found;
  for (const fs::path& path : paths_in(folder)) {
    if (path.filename().string().starts_with('.') || !is_folder(path)) continue;
    const std::vector<fs::path> below = image_folders(path, format, levels - 1);
    found.insert(found.end(), below.begin(), below.end());
  }
  return found;
}

/// Returns the folder that contains a split's files: the given one, or the only one below it.
/// Throws Error(kData) if there are several.
fs::path folder_with_images(const fs::path& folder, SplitName split, DataFormat format) {
  const std::vector<fs::path> found = image_folders(folder, format);
  if (found.empty()) return folder;
  if (found.size() == 1) return found.front();
  std::string list;
  for (const fs::path& each : found) list += "\n  " + each.string();
  fail_data("{}: several of its subfolders contain images; set data.{} to one of them:{}",
            folder.string(), key_of(split), list);
}

/// Returns the folders to search for data set folders, each with the reason for searching it.
std::vector<std::pair<fs::path, std::string>> search_folders(const std::optional<fs::path>& root) {
  std::vector<std::pair<fs::path, std::string>> places;
  if (root) places.emplace_back(*root, "data.root");
  if (const char* list = std::getenv("MNIST_TRAIN_DATA")) {
    std::istringstream folders(list);
    for (std::string folder; std::getline(folders, folder, ':');) {
      if (!folder.empty()) places.emplace_back(expand_home(folder), "MNIST_TRAIN_DATA");
    }
  }
  // The executable is in build/bin or build/<preset>/bin of the repository, or in the bundle's bin.
  fs::path folder = executable_folder();
  for (int levels = 0; levels < 3; ++levels) {
    folder = folder.parent_path();
    if (!is_folder(folder / "configs")) continue;
    places.emplace_back(folder / "third_party", path_exists(folder / "CMakeLists.txt")
                                                    ? "of the repository"
                                                    : "of the bundle");
    break;
  }
  // Once installed, it is in bin; the worker is in libexec/mnist-train.
  for (const char* up : {"..", "../.."}) {
    places.emplace_back((executable_folder() / up / "share/mnist-train").lexically_normal(),
                        "of the installation");
  }
  if (const auto cache = user_cache_folder()) places.emplace_back(*cache, "the cache");
  return places;
}

/// Returns the command that downloads a data set into a folder that find_named_dataset searches.
std::string fetch_command(const settings::NamedDataset& dataset) {
  const auto cache = user_cache_folder();
  if (dataset.mirrors.empty()) {
    const std::string folder = cache ? shell_word(cache->string()) : "DIR";
    return fmt::format("mkdir -p {0} && curl -L {1} | tar -xz -C {0}", folder, dataset.archive);
  }
  return shell_word(program_as_typed()) + " fetch " + dataset.name + " --to " +
         (cache ? shell_word((*cache / dataset.name).string()) : "DIR");
}

/// The format and locations that the options specify, directly or through a named data set.
struct NamedFiles {
  DataFormat format;
  std::vector<DataLocation> train_locations;
  DataLocation test_location;
  std::int64_t max_classes = settings::kMaxClasses;
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

/// Opens a source. If that fails because the file has an unsupported format, the error names the
/// format. `named`: as for open_image_list.
std::shared_ptr<ImageSource> open_source(const NamedFiles& files, const DataLocation& location,
                                         SplitName split, std::optional<bool> named,
                                         BadSamples& bad) try {
  constexpr std::int64_t kTrainDigits = 60000;
  constexpr std::int64_t kTestDigits = 10000;
  if (files.format != DataFormat::kSynthetic) require_exists(location, split, files.format);
  switch (files.format) {
    case DataFormat::kIdx:
      return open_idx(find_idx_files(location, split), files.max_classes);
    case DataFormat::kCifar:
      return open_cifar(find_cifar_files(location, split));
    case DataFormat::kImageFolder:
      return open_image_folder(location.images, bad);
    case DataFormat::kImageList:
      return open_image_list(location.images, bad, split == SplitName::kTest, named);
    case DataFormat::kLmdb:
      return open_lmdb(location.images, bad);
    case DataFormat::kSynthetic:
      break;
  }
  return split == SplitName::kTrain ? draw_digits(0, kTrainDigits)
                                    : draw_digits(kTrainDigits, kTestDigits);
} catch (const Error&) {
  const bool is_csv = location.images.extension() == ".csv";
  if (files.format != DataFormat::kImageList || !is_csv) refuse_unsupported(location.images);
  throw;
}

/// Numbers the classes of all sources consistently if their files have class names.
void number_classes(Sources& sources, const DatasetRecord* record, BadSamples& bad) {
  if (record != nullptr && !record->class_names.empty() &&
      !sources.train_sources.front()->class_names().empty()) {
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
    BadSamples missing(/*skip=*/true);  // the set of one process may lack classes
    source->use_classes(sources.class_names, missing);
  }
  if (sources.test_source) sources.test_source->use_classes(sources.class_names, bad);
}

/// Returns the geometry after data.channels and data.size are applied.
ImageGeometry converted(ImageGeometry geometry, const DataOptions& options) {
  if (options.channels) {
    geometry.channels = *options.channels;
    geometry.fits_channels = true;
  }
  if (options.size) {
    geometry.height = options.size->height;
    geometry.width = options.size->width;
    geometry.fits_size = true;
  }
  set_decode_options(geometry, options);
  return geometry;
}

/// Returns the geometry that the files or the options specify, or that of the first good image.
ImageGeometry geometry_of(const ImageSource& source, const DataOptions& options, BadSamples& bad) {
  const ImageGeometry geometry = converted(source.geometry().value_or(ImageGeometry{}), options);
  if (source.geometry() || (geometry.fits_channels && geometry.fits_size)) return geometry;
  Buffer buffer;
  for (std::int64_t sample = 0; sample < source.count() && !bad.is_full(); ++sample) {
    try {
      const imaging::Image first =
          imaging::decode(source.read(sample, buffer), source.sample_name(sample), geometry.decode);
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
    fail_data("{}: images have {}; data.size and data.channels need 1 or 3", source.name(),
              counted(channels, "channel"));
  }
  const ImageGeometry geometry = converted(*source.geometry(), options);
  if (geometry.same_shape(sources.geometry)) return;
  const ImageSource& train = *sources.train_sources.front();
  fail_data("{}: images are {}, but those of {} are {} (channels x height x width)", source.name(),
            geometry.text(), &train == &source ? "the run's training set" : train.name(),
            sources.geometry.text());
}

[[noreturn]] void fail_label(const ImageSource& source, std::int64_t label,
                             const std::string& problem) {
  const auto sample = std::ranges::find(source.labels(), label) - source.labels().begin();
  fail_data("{}: label {}{}", source.label_name(sample), label, problem);
}

void require_few_classes(const ImageSource& source) {
  const std::int64_t classes = source.classes();
  if (classes <= settings::kMaxClasses) return;
  const auto limit = fmt::format("; at most {} classes are supported", settings::kMaxClasses);
  if (source.class_names().empty()) fail_label(source, classes - 1, limit);
  fail_data("{}: has {} classes{}", source.name(), classes, limit);
}

const ImageSource& source_with_most_classes(const Sources& sources) {
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
  const std::int32_t max_label = *labels.rbegin();
  if (2 * std::ssize(labels) > max_label) return;
  fail_label(
      source_with_most_classes(sources), max_label,
      fmt::format(" implies {} classes, but the training set has samples of only {}; classes "
                  "are numbered from 0 without gaps",
                  max_label + 1, labels.size()));
}

/// Rejects test samples whose class number is not one of the `classes` of the training set `train`.
void require_trained_classes(const ImageSource& test, std::int64_t classes,
                             const std::string& train) {
  for (const std::int32_t label : test.labels()) {
    if (label < classes) continue;
    fail_label(test, label,
               fmt::format(", a class that the training set does not have ({} has labels up to {})",
                           train, classes - 1));
  }
}

/// Rejects options that conflict with a list's `holdout` column, and a list without a test set.
void check_parts(const DataOptions& options, const Sources& sources, bool includes_test) {
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
  if (!includes_test || has_option || has_test_files(options) || names(Part::kTest)) return;
  throw ConfigKeyError(
      "/data: requires test: a list, a fraction of train to hold out, such as 0.2, or rows with "
      "holdout \"test\" in " +
      source.name());
}

}  // namespace

bool has_test_files(const DataOptions& options) {
  return !options.format || options.format == DataFormat::kSynthetic || options.test.has_value();
}

void require_exists(const DataLocation& location, SplitName split, DataFormat format) {
  const fs::path& path = location.images;
  if (path_exists(path)) return;
  const std::string key = key_of(split);
  // `convert` creates the folders train and test.
  const std::string made = path.filename() == key ? path.parent_path().string() : "DIR";
  const auto convert = [&](const std::string& to) {
    return fmt::format("`{} convert --from idx:IDX_FOLDER --to {}`", shell_word(program_as_typed()),
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

void refuse_unsupported(const fs::path& path) {
  const auto kind = kind_of_file(path);
  if (!kind) return;
  fail_data("{}: is {}, which cannot be used here; {}", path.string(), kind->name, kind->advice);
}

fs::path find_named_dataset(const settings::NamedDataset& dataset,
                            const std::optional<fs::path>& root) {
  if (root && !is_folder(*root)) fail_data("{}: no such folder (data.root)", root->string());
  std::string searched;
  for (const auto& [place, reason] : search_folders(root)) {
    for (const std::string& name : {dataset.name, dataset.other_folder}) {
      fs::path folder = place / name;
      if (!is_folder(folder) && (place / "").parent_path().filename() == name) folder = place;
      if (name == dataset.name || is_folder(folder)) {
        searched += "\n  " + folder.string() + " (" + reason + ")";
      }
      if (!is_folder(folder)) continue;
      const std::vector<fs::path> found = image_folders(folder, dataset.format);
      // Images without labels are an error, not a reason to look elsewhere.
      if (found.empty() && !files_by_stem(folder, "images").empty()) return folder;
      if (found.size() != 1) {
        searched += found.empty() ? ", a folder without images" + no_images_hint(folder)
                                  : ", which contains several folders with images";
        continue;
      }
      if (root && place != *root) {
        spdlog::warn("no usable data set {1} in data.root {0}; reading {2} instead", root->string(),
                     dataset.name, found.front().string());
      }
      spdlog::debug("data set {}: {}", dataset.name, found.front().string());
      return found.front();
    }
  }
  std::vector<std::string> names;
  for (const settings::DatasetFile& file : dataset.files) names.push_back(file.name);
  fail_data(
      "the data set {0} was not found. Download it with: {1}\nSearched these folders:{2}\n"
      "Put its files ({3}) into one of them, or set data.root or MNIST_TRAIN_DATA to a folder "
      "that contains {0} or {4}",
      dataset.name, fetch_command(dataset), searched, fmt::join(names, ", "), dataset.other_folder);
}

DataLocation find_idx_files(DataLocation location, SplitName split) {
  require_exists(location, split, DataFormat::kIdx);
  fs::path& images = location.images;
  refuse_unsupported(images);
  if (is_folder(images)) {
    images = images_in(folder_with_images(images, split, DataFormat::kIdx), split);
    refuse_unsupported(images);
  }
  if (!location.labels) location.labels = labels_of(images);
  if (!location.labels) {
    fail_data("{}: no labels file; expected {} or the same with .gz", images.string(),
              (images.parent_path() / labels_stem(images)).string());
  }
  refuse_unsupported(*location.labels);
  return location;
}

std::vector<fs::path> find_cifar_files(const DataLocation& location, SplitName split) {
  require_exists(location, split, DataFormat::kCifar);
  if (!is_folder(location.images)) return {location.images};
  const fs::path folder = folder_with_images(location.images, split, DataFormat::kCifar);
  std::vector<fs::path> files;
  for (const std::string& name : names_of(split).cifar_files) {
    files.push_back(folder / name);
    if (path_exists(files.back())) continue;
    const bool is_python_version = path_exists(fs::path(files.back()).replace_extension()) ||
                                   path_exists(folder / "cifar-10-batches-py");
    fail_data("{}: {} is missing (data.{}){}", folder.string(), name, key_of(split),
              is_python_version ? "; the folder contains CIFAR-10's Python version; use the binary "
                                  "version (cifar-10-binary.tar.gz)"
                                : other_files_in(folder));
  }
  return files;
}

Sources open_sources(const DataOptions& options, bool includes_test, const DatasetRecord* record,
                     BadSamples& bad) {
  NamedFiles files = named_files(options);
  Sources sources;
  sources.class_names = files.class_names;
  std::optional<bool> named;
  if (record != nullptr) named = !record->class_names.empty();
  const bool only_test = record != nullptr && has_test_files(options);
  if (only_test) {
    files.train_locations = {files.test_location};
    includes_test = false;
  }
  for (const DataLocation& location : files.train_locations) {
    const SplitName split = only_test ? SplitName::kTest : SplitName::kTrain;
    sources.train_sources.push_back(open_source(files, location, split, named, bad));
    named = !sources.train_sources.front()->class_names().empty();
  }
  check_parts(options, sources, includes_test);
  std::vector<std::shared_ptr<ImageSource>> all = sources.train_sources;
  if (includes_test && has_test_files(options)) {
    sources.test_source = open_source(files, files.test_location, SplitName::kTest, named, bad);
    all.push_back(sources.test_source);
  }
  number_classes(sources, record, bad);
  sources.geometry = only_test && record->geometry
                         ? converted(*record->geometry, options)
                         : geometry_of(*sources.train_sources.front(), options, bad);
  for (const auto& source : all) {
    require_one_geometry(sources, *source, options);
    require_few_classes(*source);
  }
  // In these formats, unless the data set is known by name, only the labels determine the classes.
  const bool is_numbered_list =
      files.format == DataFormat::kImageList && sources.class_names.empty();
  if (only_test) {
    require_trained_classes(*sources.train_sources.front(), record->classes, "the network");
  } else if (files.format == DataFormat::kLmdb || is_numbered_list ||
             (files.format == DataFormat::kIdx && files.max_classes == settings::kMaxClasses)) {
    require_few_gaps(sources);
  }
  if (sources.test_source) {
    const ImageSource& train = source_with_most_classes(sources);
    require_trained_classes(*sources.test_source, train.classes(), train.name());
  }
  return sources;
}

}  // namespace mnist_train::data
