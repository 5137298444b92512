#include <spdlog/fmt/ranges.h>
#include <spdlog/spdlog.h>

#include <cstdlib>
#include <functional>
#include <sstream>
#include <system_error>

#include "base/file.h"
#include "base/print.h"
#include "base/system.h"
#include "data/sources.h"

namespace mnist_train::data {

using settings::DataFormat;
using settings::DataLocation;

namespace {

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

bool is_file(const fs::path& path) { return is_there(path) && !is_folder(path); }

bool replace_last(std::string& text, std::string_view from, std::string_view to) {
  const std::size_t at = text.rfind(from);
  if (at == std::string::npos) return false;
  text.replace(at, from.size(), to);
  return true;
}

/// Returns a stem that is equal for all spellings of a file's name: with or without ".gz", and with
/// "-idx" (names of MNIST's archives) or ".idx" (names in their gzip headers).
std::string stem_of(const fs::path& path) {
  std::string stem = path.filename().string();
  if (stem.ends_with(".gz")) stem.resize(stem.size() - 3);
  replace_last(stem, ".idx", "-idx");
  return stem;
}

/// Returns the candidate IDX files whose names contain `word`, by stem: in the folder itself, or in
/// subfolders with the file's own name, as Kaggle packs them. A file in the folder itself takes
/// precedence over one in a subfolder, and a raw file over its compressed form. Empty if the folder
/// cannot be listed.
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

/// Returns the stem of the labels file for an images file.
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

fs::path find_labels(const fs::path& images) {
  if (auto found = labels_of(images)) return *found;
  const fs::path labels = images.parent_path() / labels_stem(images);
  fail_data("{}: no labels file; expected {} or the same with .gz", images.string(),
            labels.string());
}

/// Returns the likely reason why a folder has no images: it cannot be listed or has other files.
std::string without_images(const fs::path& folder) {
  std::error_code error;
  (void)paths_in(folder, &error);
  return error ? "; the folder cannot be listed: " + error.message() : other_files_in(folder);
}

/// Returns the images file of a split: the one with a prefix of that split, otherwise the only one.
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
        folder.string(), key_of(split), prefixes[0], without_images(folder));
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
  return is_there(folder / names_of(SplitName::kTrain).cifar_files.front()) ||
         is_there(folder / names_of(SplitName::kTest).cifar_files.front());
}

/// Returns the folders that contain images, sorted: the given folder, or those up to `levels` below
/// it, such as torchvision's MNIST/raw.
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
std::vector<std::pair<fs::path, std::string>> search_places(const std::optional<fs::path>& root) {
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
    places.emplace_back(folder / "third_party", is_there(folder / "CMakeLists.txt")
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

}  // namespace

std::string fetch_command(const settings::NamedDataset& dataset) {
  const auto cache = user_cache_folder();
  if (dataset.mirrors.empty()) {
    const std::string folder = cache ? shell_word(cache->string()) : "DIR";
    return fmt::format("mkdir -p {0} && curl -L {1} | tar -xz -C {0}", folder, dataset.archive);
  }
  return shell_word(program_to_type()) + " fetch " + dataset.name + " --to " +
         (cache ? shell_word((*cache / dataset.name).string()) : "DIR");
}

fs::path find_named_dataset(const settings::NamedDataset& dataset,
                            const std::optional<fs::path>& root) {
  if (root && !is_folder(*root)) fail_data("{}: no such folder (data.root)", root->string());
  std::string searched;
  for (const auto& [place, reason] : search_places(root)) {
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
        searched += found.empty() ? ", a folder without images" + without_images(folder)
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
  require_there(location, split, DataFormat::kIdx);
  fs::path& images = location.images;
  refuse_other_kind(images);
  if (is_folder(images)) {
    images = images_in(folder_with_images(images, split, DataFormat::kIdx), split);
    refuse_other_kind(images);
  }
  if (!location.labels) location.labels = find_labels(images);
  refuse_other_kind(*location.labels);
  return location;
}

std::vector<fs::path> find_cifar_files(const DataLocation& location, SplitName split) {
  require_there(location, split, DataFormat::kCifar);
  if (!is_folder(location.images)) return {location.images};
  const fs::path folder = folder_with_images(location.images, split, DataFormat::kCifar);
  std::vector<fs::path> files;
  for (const std::string& name : names_of(split).cifar_files) {
    files.push_back(folder / name);
    if (is_there(files.back())) continue;
    const bool is_of_python = is_there(fs::path(files.back()).replace_extension()) ||
                              is_there(folder / "cifar-10-batches-py");
    fail_data("{}: missing file of data.{}{}", files.back().string(), key_of(split),
              is_of_python ? "; the folder contains CIFAR-10's Python version; use the binary "
                             "version (cifar-10-binary.tar.gz)"
                           : other_files_in(folder));
  }
  return files;
}

}  // namespace mnist_train::data
