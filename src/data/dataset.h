#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <exception>
#include <span>
#include <thread>

#include "base/file.h"
#include "data/image_decoder.h"
#include "settings/train_options.h"

namespace mnist_train::data {

/// Labelled images of one geometry: bytes in host memory, which are read-only, shared and never
/// copied, or encoded images that are decoded as they are used.
struct ImageSet {
  std::int64_t count = 0;
  std::int64_t channels = 1;
  std::int64_t height = 0;
  std::int64_t width = 0;
  std::int64_t classes = 0;               // labels are in [0, classes)
  std::span<const std::uint8_t> images;   // [count,C,H,W] u8; empty if they are encoded
  std::span<const std::uint16_t> labels;  // [count]
  std::shared_ptr<const void> owner;      // keeps both spans alive
  std::string source;                     // the images file, for messages
  std::shared_ptr<const EncodedImages> encoded{};
  std::vector<std::string> paths{};  // [count] of held-out pictures in memory; else empty

  std::int64_t bytes_per_image() const { return channels * height * width; }
  /// Returns one image as planes [C,H,W], decoded if need be. Throws Error(kData).
  std::vector<std::uint8_t> image(std::int64_t sample) const;
  /// Returns the path of a held-out or encoded picture's file in its split's folder; "" if it has
  /// none.
  std::string path(std::int64_t sample) const;
  /// Returns the number of samples of each class, [classes].
  std::vector<std::int64_t> class_sizes() const;
};

/// A training set, its held-out split, and a test set, of one geometry and number of classes. A
/// split that was not asked for is empty.
struct Dataset {
  ImageSet train;
  ImageSet validation;  // empty unless data.validation holds samples out
  ImageSet test;
  /// Of all splits' pixels and labels, or names, sizes and labels if they are decoded as they are
  /// used; "xxh3-128:<32 hex digits>". Resume and the summary use it.
  std::string hash;
  std::vector<std::string> class_names{};   // by number; empty if the data have none
  std::vector<std::string> skipped{};       // bad samples that were skipped, with the reason
  std::vector<std::int64_t> train_parts{};  // samples of each set of train_per_process, in order
  LeftOut left_out{};
  std::vector<std::string> notes{};  // warnings about the files
};

/// The names of the splits in files.
inline constexpr std::array<std::pair<const char*, ImageSet Dataset::*>, 3> kSplits{
    {{"train", &Dataset::train}, {"validation", &Dataset::validation}, {"test", &Dataset::test}}};

/// The parts of a run's `dataset.json` that are needed to evaluate it.
struct DatasetRecord {
  std::vector<std::string> class_names;  // by number
  std::vector<std::string> test;         // paths of the drawn test set; empty if none was drawn
  std::int64_t samples = 0;              // all that were found, left out by limits or not
};

/// The wanted splits of a data set. With kTest the training set is opened, as it determines the
/// classes, but none of its images is read.
enum class Splits { kBoth, kTrain, kTest };

/// A data set, found, opened and checked. Its images are then read into memory (`read`,
/// `read_into`) or decoded as they are used (`stream`), according to data.decode.
///
///   const Dataset dataset = DatasetReader(options).read();
class DatasetReader {
 public:
  /// `record`: the dataset.json of a run to evaluate, whose drawn test set is then opened as it
  /// was. Once `cancelled` becomes true, reading ends with an Error. Throws Error(kData) naming the
  /// file, or all places that were searched for a data set; also if a limit is beyond the data, if
  /// a fraction draws no samples, and if decoded images would not fit into memory. Throws
  /// ConfigKeyError if a list's column `holdout` contradicts the options.
  explicit DatasetReader(const settings::DataOptions& options, Splits splits = Splits::kBoth,
                         const fs::path& record = {}, const std::atomic<bool>* cancelled = nullptr);

  /// Numbers of samples to train on and to test on, after limit_train and limit_test.
  std::int64_t train_count() const { return train_.count(); }
  std::int64_t test_count() const { return test_.count(); }
  /// Returns the geometry of all images before any augmentation.
  const ImageGeometry& geometry() const { return geometry_; }
  std::int64_t classes() const { return classes_; }
  /// Returns the size in bytes of the memory that `read_into` fills.
  std::size_t bytes() const;
  /// Throws Error(kData) if less memory is free than `bytes()`: the kernel would kill this process.
  void require_memory() const;

  /// Reads everything into new memory. Called once. Throws Error(kData).
  Dataset read();
  /// Reads everything into `memory`, `bytes()` long, which `owner` keeps alive. Called once. Throws
  /// Error(kData).
  Dataset read_into(std::span<std::uint8_t> memory, const std::shared_ptr<const void>& owner);

  /// Decodes the `part`th of `parts` equal parts of all samples on `threads` threads, discards the
  /// images and returns the failures; samples are numbered from training over validation to test.
  /// `progress` is called now and then.
  std::vector<SampleFailure> check(int part, int parts, int threads,
                                   const std::function<void()>& progress);
  /// Returns the samples, to be decoded as they are used, without those that failed in any part,
  /// ascending. Throws Error(kData) if none are left.
  Dataset stream(const std::vector<SampleFailure>& failed = {});

 private:
  std::size_t bytes_of(const SampleView& samples) const;
  std::size_t image_bytes() const { return static_cast<std::size_t>(geometry_.bytes()); }
  bool is_cancelled() const { return cancelled_ != nullptr && *cancelled_; }
  std::shared_ptr<EncodedImages> encoded(const SampleView& samples) const;
  std::vector<SampleFailure> decode(const SampleView& samples, std::uint8_t* images) const;
  void hold_out(Splits splits, const DatasetRecord* record);
  void draw_validation(std::vector<std::int64_t> left);
  void note_drawn(const Drawn& drawn, const char* key);
  void draw_test(std::vector<std::int64_t>& left, const DatasetRecord* record);
  SampleView limited(const SampleView& samples, std::optional<std::int64_t> limit, const char* key,
                     std::int64_t& left_out) const;
  void skip(SampleView& samples, std::span<const SampleFailure> failed, std::int64_t first,
            std::span<std::uint8_t> images);
  ImageSet labelled(const SampleView& samples, std::uint16_t* labels,
                    std::shared_ptr<const void> owner) const;
  Dataset finish(Dataset dataset) const;

  settings::DataOptions options_;
  const std::atomic<bool>* cancelled_;
  BadSamples bad_;
  ImageGeometry geometry_;
  std::int64_t classes_ = 0;
  std::vector<std::string> class_names_;
  LeftOut left_out_;
  std::vector<std::string> notes_;
  SampleView train_;
  SampleView validation_;
  SampleView test_;
};

/// Returns a set without samples.
ImageSet set_of_shape(const ImageGeometry& geometry, std::int64_t classes);

/// Returns a set without samples that has the shape and the number of classes of a data set's
/// images. Its files are opened, but no image is decoded. Throws Error(kData).
ImageSet shape_of_images(settings::DataOptions options, const fs::path& record = {});

/// Reads `dataset.json`. Throws Error(kData) if it is not one.
DatasetRecord read_dataset_record(const fs::path& file);

/// Returns the `dataset.json` of the run that wrote a checkpoint or weights file: beside it, or
/// beside its folder `checkpoints`. Empty if there is none.
fs::path find_dataset_record(const fs::path& weights);

/// Returns the content of `dataset.json`: the number of samples of each class, by name or number,
/// the paths of held-out samples that a fraction drew, and what was left out: the number of files
/// by extension, `folders` with the reason for each, and the numbers of `duplicates` in a list,
/// samples beyond `limit_train` and `limit_test`, and `unusable` ones.
std::string write_dataset_record(const Dataset& dataset, const settings::DataOptions& options);

/// Returns one line for the user, such as "12 .txt files; folders: __MACOSX (made by an archive
/// program)"; "" if nothing was left out.
std::string left_out_text(const LeftOut& left_out);

/// Returns a line for each validation and test file whose bytes are those of a training file:
/// "photos/cats/1.png = photos/cats/7.png". Reads files of equal sizes, if `dataset` is a stream.
std::vector<std::string> repeated_files(const Dataset& dataset);

/// Returns the weight of each class in the loss, by number, for the samples of the training set.
/// Throws ConfigKeyError for a name that no class has, and Error(kData) if a class has no samples
/// or all weights are 0.
std::vector<float> class_weights(const settings::ClassWeightOptions& options,
                                 const Dataset& dataset);

/// The descriptors that a worker inherits of a SharedDataset. In the launcher both are
/// close-on-exec; it lets them through with dup2 in the child.
struct SharedDatasetHandle {
  int memory_fd = -1;  // an unnamed file in memory, for the samples
  int ready_fd = -1;   // a pipe: readable once they are there, hung up if they never will be
};

/// One host's samples, read once by the launcher while its workers start, and mapped by all of
/// them. The launcher makes it before it spawns and calls `publish`; each worker calls `attach`.
class SharedDataset {
 public:
  /// Throws Error(kRunFailed) if the system gives no descriptors.
  SharedDataset();
  SharedDataset(const SharedDataset&) = delete;
  SharedDataset& operator=(const SharedDataset&) = delete;
  /// Cancels reading and waits for its thread.
  ~SharedDataset();

  SharedDatasetHandle handle() const { return {memory_fd_.get(), ready_read_fd_.get()}; }

  /// Starts a thread, which takes no signals, that finds, reads and checks the data set. In the end
  /// `handle().ready_fd` becomes readable, or hangs up if that failed. Called once.
  /// `record`: as of DatasetReader.
  void publish(const settings::DataOptions& options, Splits splits = Splits::kBoth,
               const fs::path& record = {});

  /// Waits for `publish` and throws its failure.
  void wait();

 private:
  UniqueFd memory_fd_;
  UniqueFd ready_read_fd_;
  UniqueFd ready_write_fd_;
  std::atomic<bool> cancelled_{false};
  std::thread thread_;
  std::exception_ptr failure_;
};

/// Waits for the samples, calling `while_waiting` every second, and maps them, read-only and
/// without a copy. Takes ownership of the descriptors. Throws PeerError if the launcher ended or
/// gave up before, or after `timeout`, and Error(kRunFailed) if the memory was not written by a
/// launcher of this program.
Dataset attach(const SharedDatasetHandle& handle, std::chrono::milliseconds timeout,
               const std::function<void()>& while_waiting = {});

}  // namespace mnist_train::data
