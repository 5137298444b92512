#include <spdlog/fmt/ranges.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <cstdlib>
#include <sstream>
#include <string_view>
#include <system_error>
#include <utility>

#include "base/file.h"
#include "base/file_kind.h"
#include "base/print.h"
#include "base/system.h"
#include "data/sources.h"

namespace mnist_train::data {

namespace fs = std::filesystem;
using settings::DataFormat;
using settings::DataLocation;

namespace {

/// The names of a split's files in a folder.
struct SplitNames {
  std::vector<std::string_view> prefixes;
  std::vector<std::string_view> other_prefixes;
  std::vector<std::string> cifar_files;
};

const SplitNames& names_of(SplitName split) {
  static const SplitNames kTrain{{"train"},
                                 {"t10k", "test"},
                                 {"data_batch_1.bin", "data_batch_2.bin", "data_batch_3.bin",
                                  "data_batch_4.bin", "data_batch_5.bin"}};
  static const SplitNames kTest{{"t10k", "test"}, {"train"}, {"test_batch.bin"}};
  return split == SplitName::kTrain ? kTrain : kTest;
}

bool is_file(const fs::path& path) { return is_there(path) && !is_folder(path); }

bool replace_last(std::string& text, std::string_view from, std::string_view to) {
  const std::size_t at = text.rfind(from);
  if (at == std::string::npos) return false;
  text.replace(at, from.size(), to);
  return true;
}

/// Returns the names that a file may have once it is downloaded and unpacked: compressed by gzip or
/// not, with "-idx" as in MNIST's archives, or ".idx" as in the headers of these.
std::vector<std::string> forms_of(const std::string& name) {
  const bool compressed = name.ends_with(".gz");
  std::vector<std::string> forms{name, compressed ? name.substr(0, name.size() - 3) : name + ".gz"};
  for (int i = 0; i < 2; ++i) {
    std::string form = forms[i];
    if (replace_last(form, "-idx", ".idx") || replace_last(form, ".idx", "-idx")) {
      forms.push_back(form);
    }
  }
  return forms;
}

/// Returns the file itself or in another form, or in a folder of such a name, as Kaggle unpacks it.
std::optional<fs::path> existing_form(const fs::path& path) {
  const std::vector<std::string> forms = forms_of(path.filename().string());
  std::vector<fs::path> folders{path.parent_path()};
  for (const std::string& form : forms) folders.push_back(path.parent_path() / form);
  for (const fs::path& folder : folders) {
    for (const std::string& form : forms) {
      if (is_file(folder / form)) return folder / form;
    }
  }
  return std::nullopt;
}

/// Returns the possible paths of the labels file by the name of the images file.
std::vector<fs::path> labels_paths(const fs::path& images) {
  const fs::path folder = images.parent_path();
  std::string name = images.filename().string();
  if (!replace_last(name, "images", "labels")) {
    fail_data(images.string() +
              ": its labels file cannot be found, because its name does not contain \"images\"; "
              "name the labels file too");
  }
  const std::size_t type = std::max(name.rfind("idx3") + 1, name.rfind("idx4") + 1);
  if (type == 0) return {folder / name};
  const std::string rest = name.substr(type + 3);
  name.resize(type - 1);
  const std::string gz = rest.ends_with(".gz") ? ".gz" : "";
  // Another extension, as in train-images.idx3-ubyte.partial, is not a type's.
  if (rest.find('.') < rest.size() - gz.size()) return {folder / (name + "idx1" + rest)};
  return {folder / (name + "idx1" + rest), folder / (name + "idx1-ubyte" + gz),
          folder / (name + "idx1-int" + gz), folder / (name + "idx2-int" + gz)};  // QMNIST's
}

/// Finds the labels beside the images, or beside a folder of the images' own.
std::optional<fs::path> labels_of(const fs::path& images) {
  for (const fs::path& labels : labels_paths(images)) {
    if (auto found = existing_form(labels)) return found;
  }
  const fs::path folder = images.parent_path();
  if (folder.filename().string().find("images") == std::string::npos) return std::nullopt;
  return labels_of(folder);
}

fs::path find_labels(const fs::path& images) {
  if (auto found = labels_of(images)) return *found;
  const fs::path labels = labels_paths(images).front();
  fail_data(images.string() + ": its labels are missing; looked for " + labels.string() +
            " and the same " + (labels.extension() == ".gz" ? "without" : "with") + " .gz");
}

/// Returns the sorted names of the images files in a folder, and of folders that hold one of their
/// own name; a raw file hides its compressed form. There are none in a folder that cannot be
/// listed.
std::vector<std::string> images_names(const fs::path& folder) {
  std::vector<std::string> names;
  for (const fs::path& path : paths_in(folder)) {
    const std::string name = path.filename().string();
    const bool is_candidate = !name.starts_with('.') && name.find("images") != std::string::npos;
    if (!is_candidate || !existing_form(path)) continue;
    // Its raw form comes before it.
    const bool is_hidden =
        name.ends_with(".gz") && std::ranges::count(names, name.substr(0, name.size() - 3)) > 0;
    if (!is_hidden) names.push_back(name);
  }
  return names;
}

/// Returns why a folder seems to hold no images: it cannot be listed, or holds files of another
/// kind.
std::string without_images(const fs::path& folder) {
  std::error_code error;
  (void)paths_in(folder, &error);
  return error ? "; the folder cannot be listed: " + error.message() : other_files_in(folder);
}

/// Keeps the candidates that pass, unless none does.
template <class T, class Passes>
void prefer(std::vector<T>& candidates, const Passes& passes) {
  const auto end = std::stable_partition(candidates.begin(), candidates.end(), passes);
  if (end != candidates.begin()) candidates.erase(end, candidates.end());
}

/// Returns the images file of a split: the one whose name begins as that split's do, or the only
/// one.
fs::path images_in(const fs::path& folder, SplitName split) {
  const SplitNames& split_names = names_of(split);
  // At the start of the name or of a part of it, as in qmnist-train-images-idx3-ubyte.
  const auto begins_with = [](const std::vector<std::string_view>& prefixes) {
    return [&prefixes](const std::string& name) {
      return std::any_of(prefixes.begin(), prefixes.end(), [&](std::string_view prefix) {
        return name.starts_with(prefix) || name.find(std::string("-").append(prefix)) != name.npos;
      });
    };
  };
  std::vector<std::string> names = images_names(folder);
  std::erase_if(names, begins_with(split_names.other_prefixes));
  prefer(names, begins_with(split_names.prefixes));
  prefer(names, [&](const std::string& name) { return is_file(folder / name); });
  if (names.size() > 1) {  // one without labels may be another program's leftover
    prefer(names, [&](const std::string& name) { return labels_of(folder / name).has_value(); });
  }
  if (names.empty()) {
    fail_data(folder.string() + ": no images to " + std::string(key_of(split)) +
              " in this folder; expected a file such as " + std::string(split_names.prefixes[0]) +
              "-images-idx3-ubyte.gz, and its labels" + without_images(folder));
  }
  if (names.size() > 1) {
    fail_data(folder.string() + ": several files could be the images to " +
              std::string(key_of(split)) + " (" + fmt::format("{}", fmt::join(names, ", ")) +
              "); set data." + std::string(key_of(split)) + " to one of them");
  }
  return *existing_form(folder / names[0]);
}

/// Returns whether a folder holds a data set's files: images with labels, or a batch.
bool holds_images(const fs::path& folder, DataFormat format) {
  if (format == DataFormat::kIdx) {
    return std::ranges::any_of(images_names(folder), [&](const std::string& name) {
      return labels_of(folder / name).has_value();
    });
  }
  return is_there(folder / names_of(SplitName::kTrain).cifar_files.front()) ||
         is_there(folder / names_of(SplitName::kTest).cifar_files.front());
}

/// Returns the folders that hold images, sorted: the named one, or those up to `levels` below it,
/// such as torchvision's MNIST/raw.
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

/// Returns the folder that holds a split's files: the named one, or the only one below it. Throws
/// Error(kData) if there are several.
fs::path folder_with_images(const fs::path& folder, SplitName split, DataFormat format) {
  const std::vector<fs::path> found = image_folders(folder, format);
  if (found.empty()) return folder;
  if (found.size() == 1) return found.front();
  std::string list;
  for (const fs::path& each : found) list += "\n  " + each.string();
  fail_data(folder.string() + ": several folders in it hold images; set data." +
            std::string(key_of(split)) + " to one of them:" + list);
}

/// Returns the keys that lead to a data set which data.root does not hold as a folder of its name,
/// but is a part of, or holds up to `levels` below it, after a separator; empty if there are none.
std::string keys_for(const settings::NamedDataset& dataset, const fs::path& root, int levels,
                     const std::string& separator) {
  fs::path at = root.has_filename() ? root : root.parent_path();
  for (int level = 0; level < 2 && at.has_parent_path(); ++level) {
    const fs::path folder = at.parent_path();
    const bool is_own = at.filename() == dataset.name || at.filename() == dataset.other_folder;
    if (is_own && !image_folders(at, dataset.format).empty()) {
      return separator + "Set data.root to " + folder.string();
    }
    at = folder;
  }
  std::vector<std::string> found;
  for (const fs::path& each : image_folders(root, dataset.format, levels)) found.push_back(each);
  if (found.empty()) return "";
  const char* format = dataset.format == DataFormat::kIdx ? "idx" : "cifar";
  return fmt::format(
      "{}To train on the files in {}, set data.format to \"{}\", data.train and "
      "data.test to that folder, and data.dataset and data.root to null",
      separator, fmt::join(found, " or "), format);
}

/// Folders that may hold data sets as folders of their own, each with the reason to search it.
std::vector<std::pair<fs::path, std::string>> search_places(const std::optional<fs::path>& root) {
  std::vector<std::pair<fs::path, std::string>> places;
  if (root) places.emplace_back(*root, "data.root");
  if (const char* list = std::getenv("MNIST_TRAIN_DATA")) {
    std::istringstream folders(list);
    for (std::string folder; std::getline(folders, folder, ':');) {
      if (!folder.empty()) places.emplace_back(expand_home(folder), "MNIST_TRAIN_DATA");
    }
  }
  // The executable is in build/bin or build/<preset>/bin of the repository, or in bin of the
  // bundle.
  fs::path folder = executable_folder();
  for (int levels = 0; levels < 3; ++levels) {
    folder = folder.parent_path();
    if (!is_folder(folder / "configs")) continue;
    places.emplace_back(folder / "third_party", is_there(folder / "CMakeLists.txt")
                                                    ? "of the repository"
                                                    : "of the bundle");
    break;
  }
  // Installed, it is in bin, and the worker in libexec/mnist-train.
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
  return shell_word(program_to_type()) + " fetch " + dataset.name + " --to " +
         (cache ? shell_word((*cache / dataset.name).string()) : "DIR");
}

fs::path find_named_dataset(const settings::NamedDataset& dataset,
                            const std::optional<fs::path>& root) {
  std::string searched;
  for (const auto& [place, reason] : search_places(root)) {
    for (const std::string& name : {dataset.name, dataset.other_folder}) {
      fs::path folder = place / name;
      if (name == dataset.name || is_folder(folder)) {
        searched += "\n  " + folder.string() + " (" + reason + ")";
      }
      if (!is_folder(folder)) continue;
      const std::vector<fs::path> found = image_folders(folder, dataset.format);
      // Images without labels are an error, not a reason to look elsewhere.
      if (found.empty() && !images_names(folder).empty()) return folder;
      if (found.size() != 1) {
        searched += found.empty() ? ", a folder without images" + without_images(folder)
                                  : ", which has several folders of images";
        continue;
      }
      if (root && place != *root) {
        spdlog::warn("data.root {} has no folder {}: reading {}{}", root->string(), dataset.name,
                     found.front().string(), keys_for(dataset, *root, /*levels=*/0, ". "));
      }
      return found.front();
    }
  }
  std::vector<std::string> names;
  for (const settings::DatasetFile& file : dataset.files) names.push_back(file.name);
  fail_data(fmt::format(
      "the data set {0} was not found. Download it with: {1}\nLooked for these folders:{2}\n"
      "Its files ({3}) may be in any of them; data.root or MNIST_TRAIN_DATA name another folder "
      "that contains {0} or {4}{5}",
      dataset.name, fetch_command(dataset), searched, fmt::join(names, ", "), dataset.other_folder,
      root ? keys_for(dataset, *root, /*levels=*/2, "\n") : ""));
}

IdxFiles find_idx_files(const DataLocation& location, SplitName split) {
  require_there(location, split, DataFormat::kIdx);
  refuse_other_kind(location.images);
  IdxFiles files;
  files.images = location.images;
  if (is_folder(files.images)) {
    files.images = images_in(folder_with_images(files.images, split, DataFormat::kIdx), split);
  }
  refuse_other_kind(files.images);
  files.labels = location.labels ? *location.labels : find_labels(files.images);
  refuse_other_kind(files.labels);
  return files;
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
    fail_data(files.back().string() + ": missing among the files to " + std::string(key_of(split)) +
              (is_of_python ? "; the folder holds CIFAR-10's Python version, but the binary one is "
                              "read (cifar-10-binary.tar.gz)"
                            : other_files_in(folder)));
  }
  return files;
}

}  // namespace mnist_train::data
