#include "data/find_files.h"

#include <spdlog/fmt/fmt.h>
#include <spdlog/fmt/ranges.h>

#include <algorithm>
#include <cstdlib>
#include <optional>
#include <set>
#include <sstream>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

#include "base/error.h"
#include "base/file.h"
#include "base/file_kind.h"
#include "base/log.h"
#include "base/print.h"
#include "base/system.h"
#include "base/typed_command.h"

namespace mnist_train::data {

namespace fs = std::filesystem;

namespace {

/// The key of a split's location, and what the names of its files in a folder begin with.
struct SplitNames {
  const char* key;
  std::vector<std::string_view> prefixes;
  std::vector<std::string_view> other_prefixes;
  std::vector<std::string> cifar_files;
};

SplitNames names_of(SplitName split) {
  const std::vector<std::string_view> of_train{"train"};
  const std::vector<std::string_view> of_test{"t10k", "test"};
  if (split == SplitName::kTest) return {"test", of_test, of_train, {"test_batch.bin"}};
  return {"train",
          of_train,
          of_test,
          {"data_batch_1.bin", "data_batch_2.bin", "data_batch_3.bin", "data_batch_4.bin",
           "data_batch_5.bin"}};
}

/// A folder where data sets lie as folders of their own, and why it is searched.
struct SearchPlace {
  fs::path folder;
  std::string reason;
};

[[noreturn]] void fail(const std::string& message) { throw Error(ExitCode::kData, message); }

bool is_there(const fs::path& path) {
  std::error_code ignored;
  return fs::exists(path, ignored);
}

bool is_folder(const fs::path& path) {
  std::error_code ignored;
  return fs::is_directory(path, ignored);
}

/// The file itself or its raw or compressed twin, whichever exists.
std::optional<fs::path> either_form(const fs::path& path) {
  if (is_there(path)) return path;
  fs::path twin = path;
  if (path.extension() == ".gz") {
    twin.replace_extension();
  } else {
    twin += ".gz";
  }
  if (is_there(twin)) return twin;
  return std::nullopt;
}

bool replace_last(std::string& text, std::string_view from, std::string_view to) {
  const std::size_t at = text.rfind(from);
  if (at == std::string::npos) return false;
  text.replace(at, from.size(), to);
  return true;
}

/// What the labels file of an images file is called; nothing where the name does not tell.
std::optional<fs::path> labels_name(const fs::path& images) {
  std::string name = images.filename().string();
  if (!replace_last(name, "images", "labels")) return std::nullopt;
  if (!replace_last(name, "idx3", "idx1")) replace_last(name, "idx4", "idx1");
  return images.parent_path() / name;
}

std::optional<fs::path> find_labels(const fs::path& images) {
  const auto name = labels_name(images);
  return name ? either_form(*name) : std::nullopt;
}

IdxFiles with_labels(const fs::path& images) {
  refuse_other_kind(images);
  const auto name = labels_name(images);
  if (!name) {
    fail(images.string() +
         ": cannot tell what its labels file is called, because its name does not "
         "contain \"images\"; name the labels file too");
  }
  const auto labels = either_form(*name);
  if (!labels) {
    fail(images.string() + ": its labels are missing; looked for " + name->string() +
         " and the same " + (name->extension() == ".gz" ? "without" : "with") + " .gz");
  }
  return {images, *labels};
}

bool starts_with_any(const std::string& name, const std::vector<std::string_view>& prefixes) {
  return std::any_of(prefixes.begin(), prefixes.end(),
                     [&](std::string_view prefix) { return name.starts_with(prefix); });
}

/// Names of the images files in a folder, sorted; a raw file hides its compressed twin.
std::vector<std::string> images_names(const fs::path& folder) {
  std::set<std::string> names;
  std::error_code error;
  for (fs::directory_iterator entry(folder, error), end; !error && entry != end;
       entry.increment(error)) {
    const std::string name = entry->path().filename().string();
    const bool is_candidate = !name.starts_with('.') && name.find("images") != std::string::npos;
    if (is_candidate && !is_folder(entry->path())) names.insert(name);
  }
  if (error) fail(folder.string() + ": cannot list the folder: " + error.message());
  std::vector<std::string> result;
  for (const std::string& name : names) {
    const bool has_raw_twin =
        name.ends_with(".gz") && names.contains(name.substr(0, name.size() - 3));
    if (!has_raw_twin) result.push_back(name);
  }
  return result;
}

std::string list(const std::vector<std::string>& names) {
  return fmt::format("{}", fmt::join(names, ", "));
}

/// The images file of a split: the one whose name begins as that split's do, or the only one.
IdxFiles find_in_folder(const fs::path& folder, SplitName split) {
  const SplitNames split_names = names_of(split);
  std::vector<std::string> names = images_names(folder);
  std::erase_if(names, [&](const std::string& name) {
    return starts_with_any(name, split_names.other_prefixes);
  });
  std::vector<std::string> named = names;
  std::erase_if(
      named, [&](const std::string& name) { return !starts_with_any(name, split_names.prefixes); });
  if (!named.empty()) names = named;
  if (names.size() > 1) {  // what has no labels may be another program's leftover
    std::vector<std::string> paired = names;
    std::erase_if(paired, [&](const std::string& name) { return !find_labels(folder / name); });
    if (!paired.empty()) names = paired;
  }
  if (names.empty()) {
    fail(folder.string() + ": no images to " + split_names.key +
         " in this folder; expected a file such as " + std::string(split_names.prefixes[0]) +
         "-images-idx3-ubyte.gz, and its labels" + other_files_in(folder));
  }
  if (names.size() > 1) {
    fail(folder.string() + ": several files could be the images to " + split_names.key + " (" +
         list(names) + "); name one of them");
  }
  return with_labels(folder / names[0]);
}

/// The executable lies in build/bin or build/<preset>/bin of the repository, or in bin of the
/// bundle.
void add_own_place(fs::path folder, std::vector<SearchPlace>& places) {
  for (int levels = 0; levels < 3; ++levels) {
    folder = folder.parent_path();
    if (!is_folder(folder / "configs")) continue;
    places.push_back({folder / "third_party",
                      is_there(folder / "CMakeLists.txt") ? "of the repository" : "of the bundle"});
    return;
  }
}

std::vector<SearchPlace> places_for(const std::optional<fs::path>& root) {
  std::vector<SearchPlace> places;
  if (root) places.push_back({*root, "data.root"});
  if (const char* list = std::getenv("MNIST_TRAIN_DATA")) {
    std::istringstream folders(list);
    for (std::string folder; std::getline(folders, folder, ':');) {
      if (!folder.empty()) places.push_back({expand_home(folder), "MNIST_TRAIN_DATA"});
    }
  }
  add_own_place(executable_folder(), places);
  // Installed, it lies in bin, and the worker in libexec/mnist-train.
  for (const char* up : {"..", "../.."}) {
    places.push_back({(executable_folder() / up / "share/mnist-train").lexically_normal(),
                      "of the installation"});
  }
  if (const auto cache = user_cache_folder()) places.push_back({*cache, "the cache"});
  return places;
}

bool holds_images(const fs::path& folder, settings::DataFormat format) {
  if (format == settings::DataFormat::kIdx) return !images_names(folder).empty();
  return is_there(folder / names_of(SplitName::kTrain).cifar_files.front()) ||
         is_there(folder / names_of(SplitName::kTest).cifar_files.front());
}

}  // namespace

std::string fetch_command(const settings::NamedDataset& dataset) {
  const auto cache = user_cache_folder();
  return shell_word(program_to_type()) + " fetch " + dataset.name + " --to " +
         (cache ? shell_word((*cache / dataset.name).string()) : "DIR");
}

fs::path find_named_dataset(const settings::NamedDataset& dataset,
                            const std::optional<fs::path>& root) {
  std::string searched;
  for (const SearchPlace& place : places_for(root)) {
    fs::path folder = place.folder / dataset.name;
    searched += "\n  " + folder.string() + " (" + place.reason + ")";
    if (!is_folder(folder)) continue;
    if (!holds_images(folder, dataset.format)) {
      searched += ", a folder without images" + other_files_in(folder);
      continue;
    }
    if (root && place.folder != *root) {
      spdlog::warn("data.root {} has no folder {}: reading {}", root->string(), dataset.name,
                   folder.string());
    }
    return folder;
  }
  std::vector<std::string> names;
  for (const settings::DatasetFile& file : dataset.files) names.push_back(file.name);
  fail("the data set " + dataset.name +
       " was not found. Download it with: " + fetch_command(dataset) +
       "\nLooked for these folders:" + searched + "\nIts files (" + list(names) +
       ") may be in any of them; data.root or MNIST_TRAIN_DATA name "
       "another folder that contains " +
       dataset.name);
}

void require_there(const settings::DataLocation& location, SplitName split,
                   settings::DataFormat format) {
  const fs::path& path = location.images;
  if (is_there(path)) return;
  const std::string key = names_of(split).key;
  // `convert` makes folders of the two keys' names.
  const std::string made = path.filename() == key ? path.parent_path().string() : "DIR";
  const std::string convert =
      shell_word(program_to_type()) + " convert --from idx:IDX_FOLDER --to ";
  std::string advice;
  if (format == settings::DataFormat::kLmdb) {
    advice =
        "; `" + convert + shell_word("lmdb:" + made) + "` makes one of IDX files, such as MNIST's";
  } else if (format == settings::DataFormat::kImageFolder) {
    advice =
        "; put folders of images (.jpg, .jpeg, .png) there, one for each class, or make them of "
        "IDX files by `" +
        convert + shell_word("image-folder:" + made) + "`";
  }
  fail(path.string() + ": no such file or folder (data." + key + ")" + advice);
}

void refuse_other_kind(const fs::path& path) {
  const auto kind = kind_of_file(path);
  if (!kind) return;
  fail(path.string() + ": is " + kind->name + ", not what data.format reads; " + kind->advice);
}

IdxFiles find_idx_files(const settings::DataLocation& location, SplitName split) {
  require_there(location, split, settings::DataFormat::kIdx);
  IdxFiles files;
  if (is_folder(location.images)) {
    files = find_in_folder(location.images, split);
  } else {
    files = location.labels ? IdxFiles{location.images, {}} : with_labels(location.images);
  }
  if (location.labels) files.labels = *location.labels;
  refuse_other_kind(files.images);
  refuse_other_kind(files.labels);
  return files;
}

std::vector<fs::path> find_cifar_files(const settings::DataLocation& location, SplitName split) {
  require_there(location, split, settings::DataFormat::kCifar);
  if (!is_folder(location.images)) return {location.images};
  std::vector<fs::path> files;
  for (const std::string& name : names_of(split).cifar_files) {
    files.push_back(location.images / name);
    if (is_there(files.back())) continue;
    const bool is_of_python = is_there(fs::path(files.back()).replace_extension());
    fail(files.back().string() + ": missing among the files to " + names_of(split).key +
         (is_of_python ? "; the folder holds CIFAR-10's Python version, of which the binary one is "
                         "read (cifar-10-binary.tar.gz)"
                       : other_files_in(location.images)));
  }
  return files;
}

}  // namespace mnist_train::data
