#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "settings/augment_options.h"
#include "settings/named_datasets.h"
#include "strict_json/value_type.h"

namespace mnist_train::settings {

/// Where one split (train or test) of a data set lies: a folder, one images file whose labels file
/// is found by its name, or both files by name. Paths are absolute.
struct DataLocation {
  std::filesystem::path images;  // a file, or a folder that holds images and labels
  std::optional<std::filesystem::path> labels;

  bool operator==(const DataLocation&) const = default;
};

enum class Split { kEven, kThroughput };
enum class OnBadSample { kError, kSkip };
enum class Decode { kOnce, kStream, kDali };

/// What to train and test on: a named `dataset`, or a `format` with `train` and `test`, which the
/// format synthetic does not need.
struct DataOptions {
  std::optional<std::string> dataset = "mnist";  // a name of named_datasets(); none with a format
  std::optional<std::filesystem::path> root;
  std::optional<DataFormat> format;
  std::optional<DataLocation> train;
  std::optional<DataLocation> test;
  std::vector<DataLocation> train_per_process;  // instead of train: by rank
  OnBadSample on_bad_sample = OnBadSample::kError;
  Decode decode = Decode::kOnce;
  std::optional<std::int64_t> decode_threads;  // of each process; else as many as it computes with
  std::optional<NormalizeOptions> normalize;   // else the data set's defaults
  double validation = 0;                       // fraction of the training set that is held out
  std::optional<ImageSize> size;               // that images are brought to; else their own
  std::optional<std::int64_t> channels;        // 1 or 3, likewise
  AugmentList augment;                         // changes to training images, in order
  Split split = Split::kEven;
  std::optional<std::int64_t> limit_train;  // samples
  std::optional<std::int64_t> limit_test;

  bool operator==(const DataOptions&) const = default;
};

/// Returns how images of so many channels are normalised: by `normalize`, there or in `augment`,
/// else by the data set's defaults. Throws Error(kConfig) naming the key where a list has another
/// number of channels.
NormalizeOptions effective_normalize(const DataOptions& options, std::int64_t channels);

/// Throws Error(kConfig) where train_per_process names another number of sets than there are
/// processes.
void require_set_for_each(const DataOptions& options, int processes);

}  // namespace mnist_train::settings
