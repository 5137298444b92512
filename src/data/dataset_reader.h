#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "data/dataset.h"
#include "data/image_decoder.h"
#include "settings/data_options.h"

namespace mnist_train::data {

/// Which splits of a data set are wanted. With kTest the training set is opened, as it says what
/// the classes are, but none of its images is read.
enum class Splits { kBoth, kTrain, kTest };

/// All of a data set, found, opened and checked against each other; images are read into memory
/// (`read`, `read_into`) or are decoded as they are used (`stream`), by what data.decode says.
///
///   const Dataset dataset = DatasetReader(options, seed).read();
class DatasetReader {
 public:
  /// `seed` decides which samples are held out of the training set; where `cancelled` becomes true,
  /// reading is broken off with an Error. Throws Error(kData) naming the file, or every place where
  /// a data set was looked for; also where a limit is beyond the data, where data.validation leaves
  /// one side empty, and where decoded images would not fit into memory.
  explicit DatasetReader(const settings::DataOptions& options, std::int64_t seed = 1,
                         Splits splits = Splits::kBoth,
                         const std::atomic<bool>* cancelled = nullptr);

  /// Numbers of samples to train on and to test on, after limit_train and limit_test.
  std::int64_t train_count() const { return train_.count(); }
  std::int64_t test_count() const { return test_.count(); }
  /// Returns what all images have or are brought to, before any augmentation.
  const ImageGeometry& geometry() const { return geometry_; }
  std::int64_t classes() const { return classes_; }
  /// Returns the size in bytes of the memory that `read_into` fills.
  std::size_t bytes() const;
  /// Throws Error(kData) if less memory is free than `bytes()`: the kernel would end this process.
  void require_memory() const;

  /// Reads everything into new memory; files that can be used where they lie are mapped instead.
  /// A reader reads once. Throws Error(kData).
  Dataset read();
  /// Reads everything into `memory`, `bytes()` long, which `owner` keeps alive. With `in_place` raw
  /// files are mapped instead. A reader reads once. Throws Error(kData).
  Dataset read_into(std::span<std::uint8_t> memory, const std::shared_ptr<const void>& owner,
                    bool in_place = false);

  /// Decodes the `part`th of `parts` equal parts of all samples on so many threads, throws the
  /// images away and returns which failed; test samples are numbered after training samples.
  /// `progress` is called now and then.
  std::vector<SampleFailure> check(int part, int parts, int threads,
                                   const std::function<void()>& progress);
  /// Leaves out the samples that failed in any part, ascending, and gives the others to be decoded
  /// as they are used. Throws Error(kData) where none are left.
  Dataset stream(const std::vector<SampleFailure>& failed = {});

 private:
  /// The samples of a split that are used, and where their pixels and labels lie.
  struct OpenSplit {
    SampleView samples;
    std::span<std::uint8_t> images{};  // empty where they are decoded as they are used
    std::span<std::uint8_t> labels{};
    std::shared_ptr<const void> owner{};
  };

  std::size_t bytes_of(const SampleView& samples) const;
  std::vector<SampleFailure> decode(const SampleView& samples, std::uint8_t* images) const;
  bool use_in_place(OpenSplit& split) const;
  void leave_out(OpenSplit& split, std::span<const SampleFailure> failed, std::int64_t first);
  ImageSet take(const SampleView& samples, OpenSplit& from) const;
  Dataset finish(OpenSplit train_split, OpenSplit test_split) const;

  settings::DataOptions options_;
  double validation_;
  std::int64_t seed_;
  const std::atomic<bool>* cancelled_;
  BadSamples bad_;
  ImageGeometry geometry_;
  std::int64_t classes_ = 0;
  std::vector<std::string> class_names_;
  SampleView train_;
  SampleView test_;
};

/// Opens a data set for this process alone, as DatasetReader does.
Dataset open_dataset(const settings::DataOptions& options, std::int64_t seed = 1,
                     Splits splits = Splits::kBoth);

/// Returns a set without samples that has the shape and the number of classes of a data set's
/// images. Its files are opened, but no image is decoded. Throws Error(kData).
ImageSet shape_of_images(settings::DataOptions options);

}  // namespace mnist_train::data
