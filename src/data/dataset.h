#pragma once

#include <array>
#include <atomic>
#include <future>
#include <set>
#include <span>

#include "base/file.h"
#include "data/image_decoder.h"
#include "settings/train_options.h"

namespace mnist_train::data {

/// Labelled images of one geometry: read-only pixels in host memory, which copies of the set share,
/// or encoded images that are decoded on demand.
struct ImageSet {
  std::int64_t count = 0;
  std::int64_t channels = 1;
  std::int64_t height = 0;
  std::int64_t width = 0;
  std::int64_t classes = 0;               // labels are in [0, classes)
  std::span<const std::uint8_t> images;   // [count,C,H,W] u8; empty if encoded
  std::span<const std::uint16_t> labels;  // [count]
  std::shared_ptr<const void> owner;      // keeps both spans alive
  std::string source;                     // file, folder or database, for messages
  std::shared_ptr<const EncodedImages> encoded{};
  std::vector<std::string> paths{};  // [count] for decoded validation and test pictures; else empty

  std::int64_t bytes_per_image() const { return channels * height * width; }
  /// Returns one image as planes [C,H,W], decoding it if necessary. Throws Error(kData).
  std::vector<std::uint8_t> image(std::int64_t sample) const;
  /// Returns a sample's ImageSource::path, or "" for training samples with pixels in memory.
  std::string path(std::int64_t sample) const;
  /// Returns the number of samples per class, [classes].
  std::vector<std::int64_t> class_sizes() const;
};

/// The training, validation and test sets, which share one geometry and one set of classes. A split
/// that was not requested is empty.
struct Dataset {
  ImageSet train;
  ImageSet validation;  // empty unless samples are held out for it
  ImageSet test;
  /// Hash of the pixels and labels of all splits, or of names, sizes and labels if images are
  /// decoded on demand: "xxh3-128:<32 hex digits>". Used when resuming and in the summary.
  std::string hash;
  std::string files_hash{};  // of names, sizes and labels, whenever images are decoded
  std::vector<std::string> class_names{};   // by class number; empty if the data has none
  std::vector<std::string> skipped{};       // skipped bad samples, with the reason
  std::vector<std::int64_t> train_parts{};  // sizes of the train_per_process sets, in order
  LeftOut left_out{};
  std::vector<std::string> notes{};  // warnings about the files
};

/// The splits and their names in files.
inline constexpr std::array<std::pair<const char*, ImageSet Dataset::*>, 3> kSplits{
    {{"train", &Dataset::train}, {"validation", &Dataset::validation}, {"test", &Dataset::test}}};

/// What evaluation needs to know about a run's data, from its `dataset.json` or a checkpoint.
struct DatasetRecord {
  std::vector<std::string> class_names{};  // by class number; empty if the classes have no names
  std::int64_t classes = 0;
  std::vector<std::string> test{};          // paths of a test set drawn from files; else empty
  std::int64_t samples = 0;                 // all found, even if unusable or beyond a limit
  std::optional<ImageGeometry> geometry{};  // of the training images; only in checkpoints
};

/// The requested splits of a data set. With kTest, the training set is opened only if the test set
/// is a part of it or no record describes its classes, and then emptied.
enum class Splits { kBoth, kTrain, kTest };

/// A data set that has been found, opened and checked. Its images are then read into memory
/// (`read`, `read_into`) or decoded on demand (`stream`), according to data.decode.
///
///   const Dataset dataset = DatasetReader(options).read();
class DatasetReader {
 public:
  /// `record`: the dataset.json or a checkpoint of a run to evaluate; its classes and drawn test
  /// set are then used. Once `cancelled` becomes true, reading ends with an Error. Throws
  /// Error(kData) if a file is missing or invalid, naming it or all searched locations, or if a
  /// limit exceeds the data, a fraction draws no samples, or decoded images would not fit into
  /// memory. Throws ConfigKeyError if a list's `holdout` column contradicts the options, or if
  /// neither defines a test set.
  explicit DatasetReader(const settings::DataOptions& options, Splits splits = Splits::kBoth,
                         const fs::path& record = {}, const std::atomic<bool>* cancelled = nullptr);

  /// Returns the geometry of all images before augmentation.
  const ImageGeometry& geometry() const { return geometry_; }
  std::int64_t classes() const { return classes_; }
  /// Returns the number of bytes that `read_into` needs.
  std::size_t bytes() const;
  /// Throws Error(kData) if less than `bytes()` is free: the kernel would then kill the process.
  void require_memory() const;

  /// Reads everything into newly allocated memory. Call once. Throws Error(kData).
  Dataset read();
  /// Reads everything into `memory`, which has `bytes()` bytes and is kept alive by `owner`. Call
  /// once. Throws Error(kData).
  Dataset read_into(std::span<std::uint8_t> memory, const std::shared_ptr<const void>& owner);

  /// Splits each set into `parts` nearly equal parts, decodes part `part` of each on `threads`
  /// threads, discards the images and returns the failures. Samples are numbered consecutively:
  /// training, validation, test. `progress` is called after each batch.
  std::vector<SampleFailure> check(int part, int parts, int threads,
                                   const std::function<void()>& progress);
  /// Returns a data set that decodes on demand, without the samples in `failed`: the failures of
  /// all parts, in ascending order. Throws Error(kData) if a set has no samples left, or
  /// for any failure unless bad samples are skipped.
  Dataset stream(const std::vector<SampleFailure>& failed = {});

  /// Adds a note listing validation and test files that are identical to a file of another set,
  /// unless they are unusable. `read` already does so. For the result of `stream`, reads those
  /// files that are equal in size.
  void note_repeated_files(Dataset& dataset) const;

 private:
  std::size_t image_bytes() const { return static_cast<std::size_t>(geometry_.bytes()); }
  bool is_cancelled() const { return cancelled_ != nullptr && *cancelled_; }
  std::shared_ptr<EncodedImages> encoded(const SampleView& samples) const;
  std::vector<SampleFailure> decode(const SampleView& samples, std::uint8_t* images) const;
  void open(Splits splits, const DatasetRecord* record);
  void check_part_classes();
  void draw_validation(std::vector<std::int64_t> remaining);
  void note_drawn(const SampleSplit& split, const char* key);
  void draw_test(std::vector<std::int64_t>& remaining, const DatasetRecord* record);
  SampleView limited(const SampleView& samples, std::optional<std::int64_t> limit, const char* key,
                     std::int64_t& left_out) const;
  void skip(SampleView& samples, std::span<const SampleFailure> failed, std::int64_t first,
            std::span<std::uint8_t> images);
  ImageSet labelled(const SampleView& samples, std::uint16_t* labels,
                    std::shared_ptr<const void> owner) const;
  void note_empty_classes(Dataset& dataset) const;
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
  std::set<std::pair<const SampleView*, std::int32_t>> skipped_labels_;  // by split
};

/// Returns an empty set of the given shape.
ImageSet empty_image_set(const ImageGeometry& geometry, std::int64_t classes);

/// Returns an empty set with the image shape and number of classes of a data set. Decodes the first
/// good image if neither files nor options determine the shape. Throws like DatasetReader.
ImageSet read_image_shape(settings::DataOptions options, const fs::path& record = {});

/// Reads a `dataset.json` or a checkpoint. Only the class folders of an image folder may have the
/// class numbers as names. Throws Error(kData) if that fails.
DatasetRecord read_dataset_record(const fs::path& file, std::optional<settings::DataFormat> format);

/// Returns `dataset.json`'s content: sample counts by class and split, paths of held-out samples
/// drawn by fraction, and `left_out`: files per extension, `folders` with reasons, `duplicates`
/// (repeated list rows), samples beyond `limit_train` and `limit_test`, and `unusable` samples.
std::string write_dataset_record(const Dataset& dataset, const settings::DataOptions& options);

/// Returns one line for the user, such as "12 .txt files; 1 folder: __MACOSX (created by another
/// program)", or "" if nothing was left out.
std::string left_out_text(const LeftOut& left_out);

/// Returns the loss weight of each class, by class number; balanced weights are computed from the
/// training set. Throws ConfigKeyError for an unknown class name or if all weights are 0, and
/// Error(kData) if a class has no samples.
std::vector<float> class_weights(const settings::ClassWeightOptions& options,
                                 const Dataset& dataset);

/// The descriptors of a SharedDataset that a worker inherits. Both are close-on-exec in the
/// launcher, which passes them on with dup2 in the child.
struct SharedDatasetHandle {
  int memory_fd = -1;  // a memfd for the samples
  int ready_fd = -1;   // a pipe: readable once the samples are ready, hung up on failure
};

/// One host's samples, read once by the launcher while workers start, and mapped by all of them.
/// The launcher creates the object before spawning them and calls `publish`; workers call `attach`.
class SharedDataset {
 public:
  /// Throws Error(kRunFailed) if the descriptors cannot be created.
  SharedDataset();
  /// Cancels reading and waits for the thread.
  ~SharedDataset() { cancelled_ = true; }

  SharedDatasetHandle handle() const { return {memory_fd_.get(), ready_read_fd_.get()}; }

  /// Starts a thread, with signals blocked, that finds, reads and checks the data set. Then
  /// `handle().ready_fd` is readable, or hung up on error. Call once. `record`: see DatasetReader.
  void publish(const settings::DataOptions& options, Splits splits = Splits::kBoth,
               const fs::path& record = {});

  /// Waits for `publish` to finish and rethrows its failure.
  void wait();

 private:
  UniqueFd memory_fd_;
  UniqueFd ready_read_fd_;
  UniqueFd ready_write_fd_;
  std::atomic<bool> cancelled_{false};
  std::shared_future<void> reading_;  // last member: its destructor waits for the thread
};

/// Waits for the samples, calling `while_waiting` every second, and maps them read-only and
/// zero-copy. Waits forever, because the launcher kills ranks that make no progress. Takes
/// ownership of the descriptors. Throws PeerError if the launcher exits or gives up first.
Dataset attach(const SharedDatasetHandle& handle, const std::function<void()>& while_waiting = {});

}  // namespace mnist_train::data
