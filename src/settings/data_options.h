#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "settings/augment_options.h"
#include "strict_json/schema_fwd.h"

namespace mnist_train::settings {

enum class DatasetName { kMnist, kFashionMnist };
enum class DataFormat { kIdx, kImageFolder, kLmdb, kSynthetic };
enum class Split { kEven, kThroughput };
enum class OnBadSample { kError, kSkip };
enum class Decode { kOnce, kStream, kDali };

/// As in configs, and as its folder is called: "fashion-mnist".
const char* name_of(DatasetName name);

/// Where one half (train or test) of a data set lies: a folder, or one images file (its labels file
/// is found by name), or both files by name. Absolute paths.
struct DataLocation {
  std::filesystem::path images;  // a file, or a folder that holds images and labels
  std::optional<std::filesystem::path> labels;

  bool operator==(const DataLocation&) const = default;
};

/// Either `dataset`, looked up by name, or `format` with `train` and `test` (synthetic goes
/// without).
struct DataOptions {
  std::optional<DatasetName> dataset = DatasetName::kMnist;  // none when a format is given
  std::optional<std::filesystem::path> root;
  std::optional<DataFormat> format;
  std::optional<DataLocation> train;
  std::optional<DataLocation> test;
  std::vector<DataLocation> train_per_process;  // instead of train: by rank
  OnBadSample on_bad_sample = OnBadSample::kError;
  Decode decode = Decode::kOnce;
  std::optional<std::int64_t> decode_threads;  // of each process; else as many as it computes with
  std::optional<NormalizeOptions> normalize;   // else the data set's own
  double validation = 0;                       // share of the training set that is held out
  std::optional<ImageSize> size;               // that images are brought to; else their own
  std::optional<std::int64_t> channels;        // 1 or 3, likewise
  AugmentList augment;                         // changes to training images, in order
  Split split = Split::kEven;
  std::optional<std::int64_t> limit_train;  // samples
  std::optional<std::int64_t> limit_test;

  bool operator==(const DataOptions&) const = default;
};

/// The keys of `data`.
strict_json::Schema<DataOptions> data_schema();

/// `normalize` where it is given, there or in `augment`, else the figures that are customary for
/// the data set.
NormalizeOptions effective_normalize(const DataOptions& options);

/// Throws Error(kConfig) where train_per_process names another number of sets than there are
/// processes.
void require_set_for_each(const DataOptions& options, int processes);

}  // namespace mnist_train::settings
