#pragma once

#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "imaging/codec.h"
#include "settings/data_options.h"

namespace mnist_train::data {

namespace fs = std::filesystem;
using imaging::Bytes;
using Buffer = std::vector<std::uint8_t>;

/// Throws Error(kData) with a message formatted by fmt::format.
template <class... Values>
[[noreturn]] void fail_data(fmt::format_string<Values...> message, Values&&... values) {
  throw Error(ExitCode::kData, fmt::format(message, std::forward<Values>(values)...));
}

/// Channels and size of images, and whether images of another geometry are converted.
struct ImageGeometry {
  std::int64_t channels = 1;
  std::int64_t height = 0;
  std::int64_t width = 0;
  bool fits_channels = false;  // data.channels is set; otherwise a different number is an error
  bool fits_size = false;      // the same for data.size
  settings::Fit fit = settings::Fit::kStretch;
  imaging::DecodeOptions decode{};

  std::int64_t bytes() const { return channels * height * width; }
  bool same_shape(const ImageGeometry& other) const {
    return channels == other.channels && height == other.height && width == other.width;
  }
  /// Returns channels, height and width for messages, e.g. "3 x 224 x 224".
  std::string text() const;
  /// Returns a string that identifies the conversion from files to pixels, to be hashed.
  std::string hash_input() const;
};

/// Throws Error(kData) with `name` if an image's geometry `actual` differs from `wanted` and the
/// options do not request a conversion.
void require_geometry(const ImageGeometry& actual, const ImageGeometry& wanted,
                      const std::string& name);

/// Copies data.fit, data.background and data.max_pixels into a geometry.
void set_decode_options(ImageGeometry& geometry, const settings::DataOptions& options);

/// Decodes a picture into `out` as planes [C,H,W] of `geometry`, for training and `predict` alike.
/// Throws Error(kData) like imaging::decode and require_geometry.
void decode_picture(Bytes bytes, const ImageGeometry& geometry, const std::string& name,
                    std::uint8_t* out);

/// Collects unusable samples, which are either skipped and listed or reported in a single Error.
class BadSamples {
 public:
  static constexpr std::size_t kMaxNamed = 10;  // in an Error

  explicit BadSamples(bool skip) : skip_(skip) {}

  bool skips() const { return skip_; }
  /// Returns whether there are already more samples than an Error names.
  bool is_full() const { return !skip_ && messages_.size() > kMaxNamed; }
  /// Adds a message that begins with the sample's name.
  void add(const std::string& message) {
    if (is_full() || (!skip_ && std::ranges::count(messages_, message) > 0)) return;
    messages_.push_back(message);
  }
  /// Throws Error(kData) with up to kMaxNamed messages and advice, unless bad samples are skipped.
  void refuse() const;
  /// Adds a whole set's problem as a note or, unless bad samples are skipped, throws Error(kData).
  void add_note(const std::string& problem);
  /// Returns all messages, for the user.
  const std::vector<std::string>& skipped() const { return messages_; }
  const std::vector<std::string>& notes() const { return notes_; }

 private:
  bool skip_;
  std::vector<std::string> messages_, notes_;
};

/// How many of a data set's files and samples were left out, by reason.
struct LeftOut {
  std::map<std::string, std::int64_t> files{};   // in class folders, by extension or kind
  std::map<std::string, std::string> folders{};  // name -> reason
  std::int64_t duplicates = 0;                   // repeated rows of a list
  std::int64_t limit_train = 0;                  // samples beyond the limit
  std::int64_t limit_test = 0;
  std::int64_t unusable = 0;  // skipped bad samples
  std::int64_t added = 0;     // when evaluating a run: files added since it began
};

/// Returns whether a folder has the name of a split, such as "train" or "Validation".
bool is_split_name(const std::string& name);

/// Returns, for example, "2 .txt files", with advice for pictures. `kind`: a key of LeftOut::files.
std::string left_out_files(const std::string& kind, std::int64_t count);

/// The set to which a list's `holdout` column assigns a sample.
enum class Part : std::uint8_t { kTrain, kValidation, kTest };

/// Labelled images of one format. Labels and classes are known from the start; images are read on
/// demand, from any number of threads. A source holds either pixels of one geometry or encoded
/// images, each with its own geometry.
class ImageSource {
 public:
  virtual ~ImageSource() = default;

  std::int64_t count() const { return static_cast<std::int64_t>(labels_.size()); }
  /// Returns the class of each sample, [count]: 0 to classes() - 1, or -1 (see use_known_classes).
  const std::vector<std::int32_t>& labels() const { return labels_; }
  std::int64_t classes() const { return classes_; }
  /// Returns the class names by number; empty if the files have none.
  const std::vector<std::string>& class_names() const { return class_names_; }
  /// Returns a name for messages: the path of the folder, or of the (first) file, if there is one.
  const std::string& name() const { return name_; }
  /// Returns a hash of the names, sizes and labels of encoded images, as "xxh3-128:…"; empty for
  /// pixels, which are hashed when read.
  const std::string& hash() const { return hash_; }
  /// Returns the geometry of samples stored as pixels; nullopt if they are encoded.
  const std::optional<ImageGeometry>& geometry() const { return geometry_; }
  /// Returns the part to which the files assign each sample; empty if they assign none.
  const std::vector<Part>& parts() const { return parts_; }
  const LeftOut& left_out() const { return left_out_; }
  const std::vector<std::string>& notes() const { return notes_; }

  /// Returns the path of a sample's file, relative to the folder or list unless the list contains
  /// an absolute one, or "" if it has none.
  virtual std::string path(std::int64_t /*sample*/) const { return ""; }
  /// Returns the same string for all spellings of a sample's path.
  virtual std::string key_of(const std::string& path) const { return path; }
  /// Returns the string whose hash decides if a sample is drawn: its path relative to the folder or
  /// list, or its number if it has none.
  std::string draw_key(std::int64_t sample) const {
    const std::string text = path(sample);
    return text.empty() ? std::to_string(sample) : key_of(text);
  }
  /// Returns the size of a sample's file in bytes, or 0 if it has none.
  virtual std::int64_t bytes(std::int64_t /*sample*/) const { return 0; }
  /// Returns a sample's name for messages: its file, or the file and the position in it.
  virtual std::string sample_name(std::int64_t sample) const = 0;
  /// Returns a sample's name for messages about its label, which may be in another file.
  virtual std::string label_name(std::int64_t sample) const { return sample_name(sample); }
  /// Returns the stored bytes of a sample, planes [C,H,W] or a picture file, in the source's memory
  /// or in `buffer`. Throws Error(kData) with the sample's name.
  virtual Bytes read(std::int64_t sample, Buffer& buffer) const = 0;
  /// Decodes a sample to `out` as planes [C,H,W] of `geometry`. Throws Error(kData) with its name.
  void decode(std::int64_t sample, const ImageGeometry& geometry, std::uint8_t* out,
              Buffer& buffer) const;

  /// Loads the data that the first `read` would otherwise load. Throws Error(kData).
  virtual void load() const {}

  /// Renumbers the classes to match `names`, which is sorted. Throws Error(kData) for classes that
  /// are not in `names`, and reports names without samples to `bad`.
  void use_classes(const std::vector<std::string>& names, BadSamples& bad);
  /// Like `use_classes`, but gives samples of other classes the label -1 and reports nothing.
  void use_known_classes(const std::vector<std::string>& names);

 protected:
  std::vector<std::int32_t> labels_;
  std::int64_t classes_ = 0;
  std::vector<std::string> class_names_;
  std::string name_;
  std::string hash_;
  std::optional<ImageGeometry> geometry_;
  std::vector<Part> parts_;
  LeftOut left_out_;
  std::vector<std::string> notes_;
};

/// Samples of one or more sources in some order. Limits, held-out sets and skipped samples are
/// implemented as views of views.
///
///   const SampleView all({cats, dogs});                       // all cats, then all dogs
///   const SampleView some = all.select(positions({0, 100}));  // the first 100 of them
class SampleView {
 public:
  SampleView() = default;
  /// Creates a view of all samples of the sources, in order.
  explicit SampleView(std::vector<std::shared_ptr<ImageSource>> sources);

  /// Returns a view of this view's samples at the given positions, in that order.
  SampleView select(const std::vector<std::int64_t>& positions) const;

  std::int64_t count() const { return static_cast<std::int64_t>(samples_.size()); }
  std::vector<std::int64_t> source_sizes() const;
  const std::vector<std::shared_ptr<ImageSource>>& sources() const { return sources_; }
  /// Returns the name of the first source, for messages.
  const std::string& name() const { return sources_.front()->name(); }
  /// Returns a hash of the sources' hashes and all selections so far, as "xxh3-128:…".
  const std::string& hash() const { return hash_; }

  // Attributes of the sample at a position, as in ImageSource.
  std::int32_t label(std::int64_t position) const {
    return source_of(position).labels()[at(position).sample];
  }
  std::string path(std::int64_t position) const {
    return source_of(position).path(at(position).sample);
  }
  std::int64_t bytes(std::int64_t position) const {
    return source_of(position).bytes(at(position).sample);
  }
  std::string sample_name(std::int64_t position) const {
    return source_of(position).sample_name(at(position).sample);
  }
  Bytes read(std::int64_t position, Buffer& buffer) const {
    return source_of(position).read(at(position).sample, buffer);
  }
  void decode(std::int64_t position, const ImageGeometry& geometry, std::uint8_t* out,
              Buffer& buffer) const {
    source_of(position).decode(at(position).sample, geometry, out, buffer);
  }
  std::string draw_key(std::int64_t position) const {
    return source_of(position).draw_key(at(position).sample);
  }

 private:
  struct SampleRef {  // small, since there may be millions
    std::uint32_t source;
    std::uint32_t sample;
  };
  const SampleRef& at(std::int64_t position) const {
    return samples_[static_cast<std::size_t>(position)];
  }
  const ImageSource& source_of(std::int64_t position) const {
    return *sources_[at(position).source];
  }

  std::vector<std::shared_ptr<ImageSource>> sources_;
  std::vector<SampleRef> samples_;
  std::string hash_;
};

/// Positions of samples in a view, split into two groups, each in ascending order.
struct SampleSplit {
  std::vector<std::int64_t> taken;
  std::vector<std::int64_t> remaining;
  std::vector<std::int32_t> single_classes{};  // with one sample, which is not drawn
};

/// Draws a fraction of each class from the samples at positions `pool`. The samples of a class are
/// sorted by the SHA-256 of `seed:path` (`seed:number` if they have no paths), and the first
/// max(1, round(n × fraction)) of n are drawn, rounding half up, so adding or removing a sample
/// moves few others. At least one sample always stays, so a class with a single sample loses none.
SampleSplit draw_fraction(const SampleView& samples, const std::vector<std::int64_t>& pool,
                          double fraction, std::int64_t seed);

/// Returns the positions of `limit` samples, drawn by the same hash. Each class gets a share in
/// proportion to its size, by the largest remainder method, and at least one if `limit` allows it.
std::vector<std::int64_t> draw_limit(const SampleView& samples, std::int64_t limit,
                                     std::int64_t seed);

/// Images that are decoded on demand.
struct EncodedImages {
  SampleView samples;
  ImageGeometry geometry;  // after decoding
  settings::Decode decode = settings::Decode::kStream;
  std::optional<std::int64_t> threads{};  // default: the process's number of compute threads
};

struct DatasetRecord;

/// The opened files of a data set.
struct Sources {
  std::vector<std::shared_ptr<ImageSource>> train_sources;  // one, or one per process
  std::shared_ptr<ImageSource> test_source;  // null: not requested, or taken from train
  std::vector<std::string> class_names;      // by class number; empty if none
  ImageGeometry geometry;                    // of all images, after conversion
};

/// Returns whether the test set is independent of the training set.
bool has_test_files(const settings::DataOptions& options);

/// Finds and opens the files that `options` name. `record`: null, or the record of the run to
/// evaluate, whose class numbers are then used; a test set with its own files is then opened alone,
/// in place of the training set. Throws Error(kData) if a file is missing or invalid or if
/// geometries differ, and ConfigKeyError if a list and `options` contradict each other.
Sources open_sources(const settings::DataOptions& options, bool includes_test,
                     const DatasetRecord* record, BadSamples& bad);

enum class SplitName { kTrain, kTest };

/// Throws Error(kData) if a split's location does not exist, with advice on creating the data.
void require_exists(const settings::DataLocation& location, SplitName split,
                    settings::DataFormat format);

/// Throws Error(kData), with advice, if the file is of a kind that users pass by mistake.
void refuse_unsupported(const fs::path& path);

/// Finds the folder with a data set's files without opening them: a folder with the data set's name
/// (or torchvision's or the archive's name for it), or one up to two levels below. The named folder
/// is one of these folders or directly inside one: `root`, those in the path list MNIST_TRAIN_DATA,
/// `third_party` of the executable's repository or bundle, the installation's data folder, and the
/// user's cache (`mnist-train` in $XDG_CACHE_HOME or ~/.cache). Throws Error(kData) if `root` is no
/// folder or, listing all of them, if none has the files.
fs::path find_named_dataset(const settings::NamedDataset& dataset,
                            const std::optional<fs::path>& root);

/// Finds the images file and the labels file of a split. The location is one of these:
/// - both files;
/// - the images file: the labels file then has the same name, with "labels" and "idx1" in place of
///   "images" and "idx3" or "idx4";
/// - a folder: its images file's name begins with "train" (test set: "t10k" or "test"), possibly
///   after a hyphen, or it is the only one;
/// - a parent of the only folder with images.
/// Files may be raw or gzip-compressed, and each may be in a folder of the same name. Throws
/// Error(kData) if there is no such pair or more than one.
settings::DataLocation find_idx_files(settings::DataLocation location, SplitName split);

/// Finds the CIFAR-10 binary batches of a split: data_batch_1.bin to data_batch_5.bin or
/// test_batch.bin in a folder, or one file by name. Throws Error(kData) if one is missing.
std::vector<fs::path> find_cifar_files(const settings::DataLocation& location, SplitName split);

// The readers of each data.format.

/// The payload of one IDX file (http://yann.lecun.com/exdb/mnist), raw or gzip-compressed.
struct IdxFile {
  std::vector<std::int64_t> shape;  // 1 to 4 dimensions, none of them 0
  Bytes values;                     // product(shape) elements
  std::shared_ptr<const void> owner;
};

/// Reads an IDX file of unsigned bytes. Throws Error(kData) with the file and byte offset (in the
/// decompressed data) for bad magic, another element type, a dimension of 0, an impossible size,
/// too few or too many bytes, or a broken gzip stream.
IdxFile read_idx_file(const fs::path& path);

/// Opens images [n,h,w] or [n,c,h,w] and their labels [n] and checks that they match. The number of
/// classes is `max_classes`, by default the largest label + 1. Throws Error(kData) if counts
/// differ, shapes are invalid, or a label is too large.
std::shared_ptr<ImageSource> open_idx(const settings::DataLocation& files,
                                      std::int64_t max_classes = settings::kMaxClasses);

/// Opens CIFAR-10 binary batches (https://www.cs.toronto.edu/~kriz/cifar.html), in order: each
/// record is a one-byte label from 0 to 9 and 3 x 32 x 32 bytes, the red, green and blue planes.
/// Checks all labels. Throws Error(kData) with the file and byte offset for an empty file, a
/// truncated record, or a label out of range.
std::shared_ptr<ImageSource> open_cifar(const std::vector<fs::path>& files);

/// Lists the pictures (imaging::kPictureExtensions) in a folder of class folders, like
/// torchvision's ImageFolder: the sorted names of the class folders are the classes, which include
/// the pictures in subfolders. Files of other kinds, folders without pictures, hidden files and
/// folders, and other programs' folders are left out. If the folder contains pictures directly, it
/// is a single class with its own name. Opens no files. Adds unusable files and circular links to
/// `bad`. Throws Error(kData) with the path for a folder name with control characters or invalid
/// UTF-8, pictures next to class folders, and a folder that has no pictures or cannot be listed.
std::shared_ptr<ImageSource> open_image_folder(const fs::path& folder, BadSamples& bad);

/// Reads a list of pictures: a CSV file (RFC 4180, UTF-8, with a header) with the columns `path` or
/// `file_name` (relative to the list, or absolute), `label` and optionally `holdout` (train,
/// validation, test). If all labels are integers, they are class numbers; otherwise, the sorted
/// labels are the classes. Repeated rows are left out and counted; paths are compared in absolute,
/// lexically normal form. Opens no pictures. Adds missing, empty and huge files to `bad`.
/// Throws Error(kData) with the line for a malformed row, a path whose rows differ in label or
/// `holdout`, or an unknown `holdout`. `is_test`: the list is the test set. `named`: whether labels
/// are names, not numbers; nullopt: detect.
std::shared_ptr<ImageSource> open_image_list(const fs::path& file, BadSamples& bad,
                                             bool is_test = false, std::optional<bool> named = {});

/// Opens a Caffe2 LMDB, given as its folder or file. Samples are in key order. Parses every record,
/// but decodes no images. The number of classes is the largest label + 1. The database must not be
/// modified while it is open. Nothing is written, not even the lock file, so the file system may be
/// read-only. Adds invalid records to `bad`. Throws Error(kData) with the file, and the page if
/// known, for a database that is missing, damaged or without usable records.
std::shared_ptr<ImageSource> open_lmdb(const fs::path& path, BadSamples& bad);

/// One sample of a Caffe2 LMDB: an encoded image and its class number.
struct Caffe2Record {
  Bytes image;  // a picture file; points into the record
  std::int64_t label = 0;
};

/// Parses a `TensorProtos` message of two tensors: the image (data_type STRING, one string) and
/// label (INT32 or INT64, one number), as written by Caffe2's dataset tools and read by DALI's
/// `readers.caffe2`. Zero-copy. Throws Error(kData) with `name` and the invalid tensor's offset.
Caffe2Record parse_caffe2_record(Bytes bytes, const std::string& name);

/// Draws digits of MNIST's image size, for machines without data: glyphs of varying weight,
/// rotated, sheared, scaled and shifted. Samples are numbered [first, first + count) and depend
/// only on their number; labels cycle through 0 to 9.
std::shared_ptr<ImageSource> draw_digits(std::int64_t first, std::int64_t count);

/// Sizes and kinds of the pictures in an image folder, estimated from a subset.
struct PictureSurvey {
  std::int64_t count = 0;   // usable pictures that were examined
  std::int64_t height = 0;  // upright: that of most pictures, else of the median shorter side
  std::int64_t width = 0;
  double same_size = 0;                     // fraction with this height and width
  bool gray = false;                        // all decoded ones, even if stored as RGB
  bool light_corners = false;               // of at least half of these; white if transparent
  double elongated = 0;                     // fraction with an aspect ratio above 2
  double transparent = 0;                   // fraction with an alpha channel
  std::vector<std::string> unusable{};      // messages
  std::vector<std::int64_t> class_sizes{};  // in usable pictures, estimated from the examined ones
};

/// Reads the headers of up to 4,000 evenly spaced pictures of `folder`, and decodes up to 64.
PictureSurvey survey_pictures(const ImageSource& pictures, const fs::path& folder);

}  // namespace mnist_train::data
