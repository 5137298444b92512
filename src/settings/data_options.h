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

/// A file of a data set. If the data set has mirrors, the size and SHA-256 (in hexadecimal) are
/// set; for a .gz file, they are those of the decompressed content.
struct DatasetFile {
  std::string name;
  std::uint64_t bytes = 0;
  std::string sha256{};
};

/// A data set that configs and commands refer to by name.
struct NamedDataset {
  std::string name;          // also the name of the folder that contains its files
  std::string other_folder;  // folder name in torchvision or in the archive
  DataFormat format = DataFormat::kIdx;
  std::int64_t channels = 1;
  ImageSize size;
  std::int64_t classes = 10;
  std::vector<std::string> class_names{};  // by number; empty if the numbers are the names
  NormalizeOptions normalize;              // mean and standard deviation of the training set
  std::vector<DatasetFile> files;
  std::vector<std::string> mirrors{};  // base URLs of the files, tried in order
  std::string archive{};               // URL of a .tar.gz of `other_folder` if there is no mirror
};

/// Returns all named data sets. To add one, add a row to this table, and a parser for a new format.
const std::vector<NamedDataset>& named_datasets();

/// Returns the data set with this name. Throws Error(kConfig) if there is none.
const NamedDataset& named_dataset(std::string_view name);

/// Location of one split (train or test) of a data set: a folder, a file (the labels file of IDX
/// images is then found by name), or both IDX files. Paths are absolute.
struct DataLocation {
  std::filesystem::path images;  // a file, or a folder with images and labels
  std::optional<std::filesystem::path> labels{};
};

inline constexpr std::int64_t kMaxClasses = 65'536;  // labels are 16-bit numbers
/// With more classes than this, evaluation counts per class, not per pair of label and prediction.
inline constexpr std::int64_t kMaxConfusionClasses = 1024;

enum class Split { kEven, kThroughput };
enum class OnBadSample { kError, kSkip };
enum class Decode { kOnce, kStream, kDali };
enum class Fit { kStretch, kCrop, kPad };
inline constexpr std::array<const char*, 3> kFitNames{"stretch", "crop", "pad"};

/// Red, green, blue.
using Background = std::array<std::uint8_t, 3>;
inline constexpr Background kWhiteBackground{255, 255, 255};

/// The data to train and test on: a named `dataset`, or a `format` with `train` and `test` (the
/// synthetic format needs neither).
struct DataOptions {
  std::optional<std::string> dataset = "mnist";  // a name in named_datasets(); none with a format
  std::optional<std::filesystem::path> root;
  std::optional<DataFormat> format;
  std::optional<DataLocation> train;
  std::optional<DataLocation> test;
  double test_fraction = 0;                     // held out of train instead of a test set; 0: none
  std::vector<DataLocation> train_per_process;  // by rank, instead of train
  OnBadSample on_bad_sample = OnBadSample::kError;
  Decode decode = Decode::kOnce;
  std::optional<std::int64_t> decode_threads;  // per process; none: its number of compute threads
  std::optional<NormalizeOptions> normalize;   // none: the data set's defaults
  double validation = 0;                       // held out of the rest of train; 0: none
  std::int64_t holdout_seed = 0;               // for both fractions and for the limits
  std::optional<ImageSize> size;               // to which images are resized; none: not resized
  Fit fit = Fit::kStretch;                     // how images are fitted to `size`
  Background background = kWhiteBackground;    // behind transparent pixels, around padded images
  std::int64_t max_pixels = std::int64_t{64} << 20;  // of an encoded image
  std::optional<std::int64_t> channels;              // 1 or 3: converts images; none: no conversion
  AugmentList augment;                               // of training images, in order
  Split split = Split::kEven;
  std::optional<std::int64_t> limit_train;  // samples
  std::optional<std::int64_t> limit_test;

  /// Returns whether samples are image files, each with its own path.
  bool has_picture_files() const {
    return format == DataFormat::kImageFolder || format == DataFormat::kImageList;
  }
  /// Returns whether samples are encoded images, which may be decoded on the fly.
  bool is_encoded() const { return has_picture_files() || format == DataFormat::kLmdb; }
};

/// Returns the normalisation for images with this number of channels: `normalize` in data or in
/// `augment`, or else the data set's default. Throws Error(kConfig) naming the key if a list does
/// not have one number per channel.
NormalizeOptions effective_normalize(const DataOptions& options, std::int64_t channels);

/// Returns the statistics of ImageNet, with which all published weights were trained.
NormalizeOptions imagenet_normalize();

/// Returns the normalisation for RGB images that have been converted to grayscale (see
/// imaging::with_channels).
NormalizeOptions gray_of(const NormalizeOptions& normalize);

/// Returns the mean brightness of the training images, from 0 to 1, as implied by the data set's
/// name or the normalisation; nullopt if neither implies one.
std::optional<double> trained_brightness(const DataOptions& options);

/// Throws Error(kConfig) unless train_per_process is empty or contains one location per process.
void require_set_per_process(const DataOptions& options, int processes);

}  // namespace mnist_train::settings
