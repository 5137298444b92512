#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "data/encoded_set.h"
#include "data/image_set.h"
#include "data/sources.h"
#include "settings/data_options.h"

namespace mnist_train::data {

/// Which splits of a data set are wanted. For the test half the training set is opened, as it says
/// what the classes are, but its images are not decoded.
enum class Splits { kBoth, kTrain, kTest };

/// All of a data set, found and opened, not yet read; what the headers say is checked, and
/// nothing is allocated. Throws Error(kData).
///
/// A `dataset` is looked for as a folder of that name in `root`, in each folder of the path list
/// MNIST_TRAIN_DATA, in `third_party` of the repository that the executable was built in and of the
/// bundle that it lies in, and in the user's cache ($XDG_CACHE_HOME or ~/.cache, `mnist-train/`).
/// A location of `train` or `test` is a folder (names begin with "train", with "t10k" or "test", or
/// there is only one pair), an images file (its labels file has "labels" for "images" in its name
/// and "idx1" for "idx3"), or both files. Everywhere a file may be raw or compressed by gzip.
class DatasetReader {
 public:
  /// `seed` decides which samples are held out of the training set.
  /// `cancelled`: a long reading is to end; may be null.
  explicit DatasetReader(const settings::DataOptions& options, std::int64_t seed = 1,
                         Splits splits = Splits::kBoth,
                         const std::atomic<bool>* cancelled = nullptr);

  /// The size of the memory that `read_into` fills.
  std::size_t bytes() const;

  /// Reads everything, into memory of its own where files cannot be mapped. Once.
  Dataset read();
  /// Reads everything into memory of bytes() that `owner` keeps alive. Once.
  Dataset read_into(std::span<std::uint8_t> memory, const std::shared_ptr<const void>& owner);

 private:
  void count(const settings::DataOptions& options);
  void require_memory() const;
  ImageSet read_train(std::span<std::uint8_t> images, std::span<std::uint8_t> labels,
                      const std::shared_ptr<const void>& owner);
  Dataset finish(ImageSet train, ImageSet validation, ImageSet test) const;

  double validation_;
  std::int64_t seed_;
  BadSamples bad_;
  Sources sources_;
  std::vector<std::int64_t> train_parts_;
  std::int64_t train_count_ = 0;  // after limit_train
  std::int64_t test_count_ = 0;
};

/// Finds and reads a data set, both splits cut to `limit_train` and `limit_test` (the first
/// samples) before any are held out; a limit beyond the data is an error. `classes` of both splits
/// covers all labels of both files. Throws Error(kData) naming the file, or every place where it
/// looked.
Dataset open_dataset(const settings::DataOptions& options, std::int64_t seed = 1,
                     Splits splits = Splits::kBoth);

}  // namespace mnist_train::data
