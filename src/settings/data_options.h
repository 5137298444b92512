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

/// Location of one split (train or test) of a data set: a folder, an images file whose labels file
/// is found by its name, or both files. Paths are absolute.
struct DataLocation {
  std::filesystem::path images;  // a file, or a folder that holds images and labels
  std::optional<std::filesystem::path> labels;
};

enum class Split { kEven, kThroughput };
enum class OnBadSample { kError, kSkip };
enum class Decode { kOnce, kStream, kDali };

/// The data to train and test on: a named `dataset`, or a `format` with `train` and `test`, unless
/// the format is synthetic.
struct DataOptions {
  std::optional<std::string> dataset = "mnist";  // a name of named_datasets(); none with a format
  std::optional<std::filesystem::path> root;
  std::optional<DataFormat> format;
  std::optional<DataLocation> train;
  std::optional<DataLocation> test;
  std::vector<DataLocation> train_per_process;  // instead of train: by rank
  OnBadSample on_bad_sample = OnBadSample::kError;
  Decode decode = Decode::kOnce;
  std::optional<std::int64_t> decode_threads;  // per process; none: its compute threads
  std::optional<NormalizeOptions> normalize;   // none: the data set's defaults
  double validation = 0;                       // held-out fraction of the training set
  std::optional<ImageSize> size;               // to which images are resized; none: their own
  std::optional<std::int64_t> channels;  // 1 or 3, to which images are converted; none: theirs
  AugmentList augment;                   // of training images, in order
  Split split = Split::kEven;
  std::optional<std::int64_t> limit_train;  // samples
  std::optional<std::int64_t> limit_test;
};

/// Returns the normalisation of images with this number of channels: `normalize`, at the top or in
/// `augment`, else the data set's default. Throws Error(kConfig) naming the key if a list has
/// another number of channels.
NormalizeOptions effective_normalize(const DataOptions& options, std::int64_t channels);

/// Returns the normalisation of RGB images that were converted to gray (see
/// imaging::with_channels).
NormalizeOptions gray_of(const NormalizeOptions& normalize);

/// Returns the mean brightness of the training images, from 0 to 1, according to the data set's
/// name or the normalisation; nothing if neither tells.
std::optional<double> trained_brightness(const DataOptions& options);

/// Throws Error(kConfig) unless train_per_process is empty or lists one set per process.
void require_set_for_each(const DataOptions& options, int processes);

}  // namespace mnist_train::settings
