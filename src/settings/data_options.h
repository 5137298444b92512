#pragma once

#include <array>
#include <cstdint>
#include <filesystem>
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

/// Location of one split (train or test) of a data set: a folder, an images file whose labels file
/// is found by its name, or both files. Paths are absolute.
struct DataLocation {
  std::filesystem::path images;  // a file, or a folder that holds images and labels
  std::optional<std::filesystem::path> labels{};
};

inline constexpr std::int64_t kMaxClasses = 65'536;  // labels are 16-bit numbers
/// With more classes, an evaluation counts by class instead of by pair of label and prediction.
inline constexpr std::int64_t kMaxConfusionClasses = 1024;

enum class Split { kEven, kThroughput };
enum class OnBadSample { kError, kSkip };
enum class Decode { kOnce, kStream, kDali };
enum class Fit { kStretch, kCrop, kPad };
inline constexpr std::array<const char*, 3> kFitNames{"stretch", "crop", "pad"};

/// Red, green, blue.
using Background = std::array<std::uint8_t, 3>;
inline constexpr Background kWhiteBackground{255, 255, 255};

/// The data to train and test on: a named `dataset`, or a `format` with `train` and `test`, unless
/// the format is synthetic.
struct DataOptions {
  std::optional<std::string> dataset = "mnist";  // a name of named_datasets(); none with a format
  std::optional<std::filesystem::path> root;
  std::optional<DataFormat> format;
  std::optional<DataLocation> train;
  std::optional<DataLocation> test;
  double test_fraction = 0;                     // instead of test: held out of train; 0: none
  std::vector<DataLocation> train_per_process;  // instead of train: by rank
  OnBadSample on_bad_sample = OnBadSample::kError;
  Decode decode = Decode::kOnce;
  std::optional<std::int64_t> decode_threads;  // per process; none: its compute threads
  std::optional<NormalizeOptions> normalize;   // none: the data set's defaults
  double validation = 0;                       // fraction of the rest that is held out
  std::int64_t holdout_seed = 0;               // of both fractions and of the limits
  std::optional<ImageSize> size;               // to which images are resized; none: their own
  Fit fit = Fit::kStretch;                     // how images reach `size`
  /// Under pixels that are not opaque, and around padded images. None: white, with a warning, for a
  /// run from before there was this key.
  std::optional<Background> background = kWhiteBackground;
  std::int64_t max_pixels = std::int64_t{64} << 20;  // of an encoded image
  std::optional<std::int64_t> channels;  // 1 or 3, to which images are converted; none: theirs
  AugmentList augment;                   // of training images, in order
  Split split = Split::kEven;
  std::optional<std::int64_t> limit_train;  // samples
  std::optional<std::int64_t> limit_test;

  /// Returns whether samples are picture files, each with a path.
  bool has_picture_files() const {
    return format == DataFormat::kImageFolder || format == DataFormat::kImageList;
  }
  /// Returns whether samples are encoded pictures, which may be decoded as they are used.
  bool is_encoded() const { return has_picture_files() || format == DataFormat::kLmdb; }
};

/// Returns the normalisation of images with this number of channels: `normalize`, at the top or in
/// `augment`, else the data set's default. Throws Error(kConfig) naming the key if a list has
/// another number of channels.
NormalizeOptions effective_normalize(const DataOptions& options, std::int64_t channels);

/// Returns data.background as red, green and blue.
std::array<std::uint8_t, 3> background_of(const DataOptions& options);

/// Returns the normalisation of RGB images that were converted to gray (see
/// imaging::with_channels).
NormalizeOptions gray_of(const NormalizeOptions& normalize);

/// Returns the mean brightness of the training images, from 0 to 1, according to the data set's
/// name or the normalisation; nothing if neither tells.
std::optional<double> trained_brightness(const DataOptions& options);

/// Throws Error(kConfig) unless train_per_process is empty or lists one set per process.
void require_set_for_each(const DataOptions& options, int processes);

}  // namespace mnist_train::settings
