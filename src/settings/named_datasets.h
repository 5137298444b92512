#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "settings/augment_options.h"

namespace mnist_train::settings {

enum class DataFormat { kIdx, kCifar, kImageFolder, kImageList, kLmdb, kSynthetic };

/// A file of a data set with its size in bytes and its SHA-256 in hexadecimal digits. Both are
/// those of the inflated content where the file is compressed by itself (.gz).
struct DatasetFile {
  std::string name;
  std::uint64_t bytes = 0;
  std::string sha256;
};

/// What is known of a data set that configs and commands call by name.
struct NamedDataset {
  std::string name;          // also of the folder that holds its files
  std::string other_folder;  // as torchvision or the archive calls it
  DataFormat format = DataFormat::kIdx;
  std::int64_t channels = 1;
  ImageSize size;
  std::int64_t classes = 10;
  std::vector<std::string> class_names{};  // by number; empty where the numbers are the names
  NormalizeOptions normalize;              // mean and standard deviation of its training set
  std::vector<DatasetFile> files;
  std::optional<DatasetFile> archive{};  // the .tar.gz that the files come in, where they do
  std::vector<std::string> mirrors;      // tried in order; a file's name is appended
};

/// Returns all named data sets. A new one is a row of this table, and a parser where its format is
/// new.
const std::vector<NamedDataset>& named_datasets();

/// Returns the row of a name. Throws Error(kConfig) where no row has it.
const NamedDataset& named_dataset(std::string_view name);

}  // namespace mnist_train::settings
