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

[[noreturn]] inline void fail_data(const std::string& message) {
  throw Error(ExitCode::kData, message);
}
/// Formats the message as fmt::format does.
template <class First, class... Rest>
[[noreturn]] void fail_data(fmt::format_string<First, Rest...> format, First&& first,
                            Rest&&... rest) {
  fail_data(fmt::format(format, std::forward<First>(first), std::forward<Rest>(rest)...));
}

/// Channels and size of images, and whether images that differ are converted.
struct ImageGeometry {
  std::int64_t channels = 1;
  std::int64_t height = 0;
  std::int64_t width = 0;
  bool fits_channels = false;  // data.channels is set; otherwise other channels are an error
  bool fits_size = false;      // the same for data.size
  settings::Fit fit = settings::Fit::kStretch;
  imaging::DecodeOptions decode{};
  bool warns = false;  // of transparent and turned pictures, which data.background null asks for

  std::int64_t bytes() const { return channels * height * width; }
  bool same_shape(const ImageGeometry& other) const {
    return channels == other.channels && height == other.height && width == other.width;
  }
  /// Returns channels, height and width for messages, such as "3 x 244 x 244".
  std::string text() const;
  /// Returns what tells pixels made of the same files apart.
  std::string hashed_text() const;
};

/// Throws Error(kData) with `name` if an image of geometry `own` differs from `wanted` and the
/// options do not ask to convert it.
void require_geometry(const ImageGeometry& own, const ImageGeometry& wanted,
                      const std::string& name);

/// Applies data.fit, data.background and data.max_pixels to a geometry.
void prepare_pictures(ImageGeometry& geometry, const settings::DataOptions& options);

/// Decodes a picture and writes it as planes [C,H,W] of `geometry` to `out`: the one way from a
/// file to pixels. Returns whether any of its pixels is transparent. Throws Error(kData) as
/// imaging::decode and require_geometry do.
bool decode_picture(Bytes bytes, const ImageGeometry& geometry, const std::string& name,
                    std::uint8_t* out);

/// Collects problems with single samples: the first one is an Error, or all are listed and their
/// samples skipped.
class BadSamples {
 public:
  explicit BadSamples(bool skip) : skip_(skip) {}

  bool skips() const { return skip_; }
  /// Takes a message that begins with the sample's name. Throws Error(kData) with it unless bad
  /// samples are skipped.
  void add(const std::string& message) {
    if (!skip_) fail_data(message);
    skipped_.push_back(message);
  }
  const std::vector<std::string>& skipped() const { return skipped_; }

 private:
  bool skip_;
  std::vector<std::string> skipped_;
};

/// What a data set leaves out of its folders and files, and why.
struct LeftOut {
  std::map<std::string, std::int64_t> files{};   // in class folders, by extension (".txt")
  std::map<std::string, std::string> folders{};  // name -> reason
  std::int64_t duplicates = 0;                   // repeated rows of a list
  std::int64_t limit_train = 0;                  // samples beyond the limit
  std::int64_t limit_test = 0;
  std::int64_t unusable = 0;  // skipped bad samples
  std::int64_t added = 0;     // evaluation of a run: files that are new since it began
};

/// The set that a list's column `holdout` puts a sample into.
enum class Part : std::uint8_t { kTrain, kValidation, kTest };

/// Labelled images in the files of one format, opened: labels and classes are known, pixels are
/// read on demand, by several threads at once if need be. A source holds either pixels of one
/// geometry or encoded images, each with its own.
class ImageSource {
 public:
  static constexpr std::int64_t kMostClasses = settings::kMaxClasses;

  virtual ~ImageSource() = default;

  std::int64_t count() const { return static_cast<std::int64_t>(labels_.size()); }
  /// Returns the class of each sample, [count], from 0 to classes() - 1.
  const std::vector<std::int32_t>& labels() const { return labels_; }
  std::int64_t classes() const { return classes_; }
  /// Returns the names of the classes by number; empty if the files have none.
  const std::vector<std::string>& class_names() const { return class_names_; }
  /// Returns the path of the file, folder or database, for messages.
  const std::string& name() const { return name_; }
  /// Returns a hash of the names, sizes and labels of encoded images, as "xxh3-128:…"; empty for
  /// pixels, which are hashed when they are read.
  const std::string& hash() const { return hash_; }
  /// Returns the geometry of samples that are stored as pixels; nothing if they are encoded.
  const std::optional<ImageGeometry>& geometry() const { return geometry_; }

  /// Returns the part of each sample that the files name; empty if they name none.
  const std::vector<Part>& parts() const { return parts_; }
  const LeftOut& left_out() const { return left_out_; }
  /// Returns remarks on the files for the user.
  const std::vector<std::string>& notes() const { return notes_; }

  /// Returns the path of a sample's file, relative to the folder or list; "" if it has none.
  virtual std::string path(std::int64_t /*sample*/) const { return ""; }
  /// Returns the size of a sample's file; 0 if it has none.
  virtual std::int64_t bytes(std::int64_t /*sample*/) const { return 0; }
  /// Returns the name of a sample for messages: its file, or the file and its position in it.
  virtual std::string sample_name(std::int64_t sample) const = 0;
  /// Returns the name of a sample for messages about its label, which may be in another file.
  virtual std::string label_name(std::int64_t sample) const { return sample_name(sample); }
  /// Returns the stored bytes of a sample, planes [C,H,W] or a picture's file, in memory of the
  /// source or in `buffer`. Throws Error(kData) with the sample's name.
  virtual Bytes read(std::int64_t sample, Buffer& buffer) const = 0;
  /// Writes a sample to `out` as planes [C,H,W] of `geometry`. Throws Error(kData) with its name.
  void decode(std::int64_t sample, const ImageGeometry& geometry, std::uint8_t* out,
              Buffer& buffer) const;

  /// Reads what `read` would read at its first call. Throws Error(kData).
  virtual void load() const {}

  /// Numbers the classes as in `names`, which is sorted. Throws Error(kData) for classes that are
  /// not in `names`, and adds those of `names` that are missing here to `bad`.
  void use_classes(const std::vector<std::string>& names, BadSamples& bad);
  /// Does the same, but samples of other classes get the label -1.
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

/// Samples of one or several sources in some order. Limits, hold-outs and skipped samples are views
/// of views.
///
///   const SampleView all({cats, dogs});                       // all cats, then all dogs
///   const SampleView some = all.select(positions({0, 100}));  // its first hundred samples
class SampleView {
 public:
  /// Makes a view of no samples.
  SampleView() = default;
  /// Makes a view of all samples of the sources, in order.
  explicit SampleView(std::vector<std::shared_ptr<ImageSource>> sources);

  /// Returns a view of the samples at these positions of this one, in this order.
  SampleView select(const std::vector<std::int64_t>& positions) const;

  std::int64_t count() const { return static_cast<std::int64_t>(samples_.size()); }
  /// Returns the number of samples of each source.
  std::vector<std::int64_t> parts() const;
  const std::vector<std::shared_ptr<ImageSource>>& sources() const { return sources_; }
  /// Returns the name of the first source, for messages.
  const std::string& name() const { return sources_.front()->name(); }
  /// Returns a hash of the sources' hashes and of all selections since, as "xxh3-128:…".
  const std::string& hash() const { return hash_; }

  // The sample at a position, as in ImageSource.
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
  /// Returns the text by which a sample is drawn: its path, else its number in its source.
  std::string drawn_by(std::int64_t position) const {
    std::string text = path(position);
    return text.empty() ? std::to_string(at(position).sample) : text;
  }

 private:
  struct PlacedSample {  // small, since there may be millions
    std::uint32_t source;
    std::uint32_t sample;
  };
  const PlacedSample& at(std::int64_t position) const {
    return samples_[static_cast<std::size_t>(position)];
  }
  const ImageSource& source_of(std::int64_t position) const {
    return *sources_[at(position).source];
  }

  std::vector<std::shared_ptr<ImageSource>> sources_;
  std::vector<PlacedSample> samples_;
  std::string hash_;
};

/// Samples of a view by their positions, ascending.
struct Drawn {
  std::vector<std::int64_t> taken;
  std::vector<std::int64_t> left;
  std::vector<std::int32_t> single_classes{};  // of which nothing was taken
};

/// Draws a fraction of each class of the samples at positions `among`. Within a class, samples are
/// sorted by the SHA-256 of `seed:path` (or `seed:number`, if they have no paths), ascending, and
/// the first max(1, round(n × fraction)) of n are taken, but not the last one, and none of a single
/// sample. Halves are rounded up. So a sample that is added or removed moves few others.
Drawn draw_fraction(const SampleView& samples, const std::vector<std::int64_t>& among,
                    double fraction, std::int64_t seed);

/// Draws `limit` samples, at most all, in the same order. Each class has a share in proportion to
/// its size, by largest remainders, and at least one sample if the limit allows it.
Drawn draw_limit(const SampleView& samples, const std::vector<std::int64_t>& among,
                 std::int64_t limit, std::int64_t seed);

/// Images that are decoded as they are used.
struct EncodedImages {
  SampleView samples;
  ImageGeometry geometry;  // of the decoded images
  settings::Decode decode = settings::Decode::kStream;
  std::optional<std::int64_t> threads{};  // default: as many as the process computes with
};

struct DatasetRecord;

/// The opened files of a data set.
struct Sources {
  std::vector<std::shared_ptr<ImageSource>> train_sources;  // one, or one for each process
  std::shared_ptr<ImageSource> test_source;                 // null: not wanted, or part of train
  std::vector<std::string> class_names;                     // by number; empty if there are none
  ImageGeometry geometry;                                   // of all images, once converted
};

/// Finds and opens the files that `options` name. `record` is that of a run to evaluate, which
/// numbers the classes of drawn test sets; null: none. Throws Error(kData) if a file is missing or
/// wrong, or if geometries differ, and ConfigKeyError if a list and `options` contradict each
/// other.
Sources open_sources(const settings::DataOptions& options, bool with_test,
                     const DatasetRecord* record, BadSamples& bad);

enum class SplitName { kTrain, kTest };

/// Returns the key of `data` that names a split.
const char* key_of(SplitName split);

/// Throws Error(kData) if nothing is at a split's location, with the command that makes such data,
/// if there is one.
void require_there(const settings::DataLocation& location, SplitName split,
                   settings::DataFormat format);

/// Throws Error(kData), with advice, if the file is of a kind that no data.format reads.
void refuse_other_kind(const fs::path& path);

/// Finds the folder that holds a data set's files, without opening any: a folder of the data set's
/// name, or of the name that torchvision gives it, in `root`, in a folder of the path list
/// MNIST_TRAIN_DATA, in `third_party` of the repository or bundle of the executable, in the
/// installation, or in the user's cache
/// ($XDG_CACHE_HOME or ~/.cache, `mnist-train/`). Throws Error(kData) listing all these places.
fs::path find_named_dataset(const settings::NamedDataset& dataset,
                            const std::optional<fs::path>& root);

/// Returns the command that a user types to download a data set into a folder that is searched.
std::string fetch_command(const settings::NamedDataset& dataset);

/// Finds the images file and the labels file of a split. The location is both files; or the images
/// file, whose labels file has the same name with "labels" instead of "images" and "idx1" instead
/// of "idx3" (or QMNIST's, with "idx2-int"); or a folder, in which the split's names begin with
/// "train", or with "t10k" or "test", unless it has only one pair of files; or a folder above the
/// only one that holds images. Files may be raw or compressed by gzip, and each may be in a folder
/// of its own name. Throws Error(kData) if there is no such pair, or more than one.
settings::DataLocation find_idx_files(settings::DataLocation location, SplitName split);

/// Finds the binary batches of CIFAR-10 of a split: data_batch_1.bin to data_batch_5.bin or
/// test_batch.bin in a folder, or one file by its name. Throws Error(kData) if one is missing.
std::vector<fs::path> find_cifar_files(const settings::DataLocation& location, SplitName split);

// One function for each data.format, each in its own file.

/// The payload of one IDX file (http://yann.lecun.com/exdb/mnist), raw or gzip-compressed.
struct IdxFile {
  std::vector<std::int64_t> shape;  // 1 to 4 dimensions, none of them 0
  Bytes values;                     // product(shape) elements, as stored
  std::shared_ptr<const void> owner;
};

/// Reads an IDX file of integers of 8, 16 or 32 bits. Throws Error(kData) naming file and byte
/// offset (in the inflated data if the file is compressed): bad magic, another element type, a
/// dimension of 0, a size that the file cannot hold, too few or too many bytes, a broken gzip
/// stream.
IdxFile read_idx_file(const fs::path& path);

/// Opens images [n,h,w] or [n,c,h,w] and their labels [n] and checks them against each other. There
/// are `max_classes` classes or, by default, the greatest label + 1. Throws Error(kData) if counts
/// differ, shapes do not fit, or a label is too large.
std::shared_ptr<ImageSource> open_idx(const settings::DataLocation& files,
                                      std::int64_t max_classes = ImageSource::kMostClasses);

/// Opens binary batches of CIFAR-10 (https://www.cs.toronto.edu/~kriz/cifar.html), in order:
/// records of a label from 0 to 9 in one byte and of 3 x 32 x 32 bytes, the planes red, green and
/// blue. Checks all labels. Throws Error(kData) with file and byte offset for an empty file, one
/// that ends within a record, and a label out of range.
std::shared_ptr<ImageSource> open_cifar(const std::vector<fs::path>& files);

/// Lists a folder of class folders of pictures (imaging::kPictureExtensions) as torchvision's
/// ImageFolder does: the sorted names of the class folders are the classes, and class folders may
/// be nested. Files of other kinds, folders without pictures, and folders that are hidden or made
/// by other programs are left out. A folder that holds pictures itself is one class of that
/// folder's name. No file is opened. Throws Error(kData) naming the file for an empty file, a name
/// with control bytes or broken UTF-8, links in a circle, and pictures beside class folders.
std::shared_ptr<ImageSource> open_image_folder(const fs::path& folder, BadSamples& bad);

/// How a list of pictures is read.
struct ListKind {
  bool is_test = false;
  std::optional<bool> named{};  // whether labels are names, not numbers; none: they tell
};

/// Reads a list of pictures: a CSV file (RFC 4180, UTF-8, with a header) with the columns `path` or
/// `file_name` (relative to the list, or absolute), `label` and perhaps `holdout` (train,
/// validation, test). If all labels are integers, they are class numbers, else the sorted labels
/// are the classes. Repeated rows are counted as left out. No picture is opened. Throws
/// Error(kData) naming list and line for a broken row, a missing file, a path with two labels, and
/// another word in `holdout`.
std::shared_ptr<ImageSource> open_image_list(const fs::path& file, const ListKind& kind,
                                             BadSamples& bad);

/// Opens a Caffe2 LMDB, given as its folder or its file. Samples are in the order of their keys;
/// every record's frame is read, but not its image. There are as many classes as the greatest label
/// + 1. The database must not be written to meanwhile; it is never written to here, not even its
/// lock file, so it may be on a read-only file system. Throws Error(kData) naming file and key for
/// a database that is missing, damaged or empty, and for a record of another kind.
std::shared_ptr<ImageSource> open_lmdb(const fs::path& path, BadSamples& bad);

/// One sample of a Caffe2 LMDB: an encoded image and the number of its class.
struct Caffe2Record {
  Bytes image;  // a JPEG or PNG file, within the record's bytes
  std::int64_t label = 0;
};

/// Reads a `TensorProtos` message of two tensors: the image (data_type STRING, one string) and the
/// label (INT32 or INT64, one number), as Caffe2's dataset tools write them and DALI's
/// `readers.caffe2` reads them. Copies nothing. Throws Error(kData) with `name` and the offset of
/// the wrong tensor.
Caffe2Record parse_caffe2_record(Bytes bytes, const std::string& name);

/// Draws digits of MNIST's geometry, for machines without data: strokes, rotated, sheared, scaled,
/// shifted and of varying width. Samples are numbered [first, first + count) and depend on their
/// number alone; labels repeat 0 to 9.
std::shared_ptr<ImageSource> draw_digits(std::int64_t first, std::int64_t count);

/// Sizes and kinds of the pictures of an image folder, from a sample of them.
struct PictureSurvey {
  std::int64_t count = 0;   // pictures that were looked at and can be used
  std::int64_t height = 0;  // upright, of the picture with the median shorter side
  std::int64_t width = 0;
  bool same_size = false;               // all have this height and width
  bool gray = false;                    // all, even if they are stored as colours
  bool light_corners = false;           // on average; transparent ones are white
  double elongated = 0;                 // fraction with one side more than twice the other
  double transparent = 0;               // fraction with an alpha channel
  std::vector<std::string> unusable{};  // messages

  std::int64_t shorter_side() const { return std::min(height, width); }
};

/// Reads the headers of up to 4,000 pictures of `folder` and decodes up to 64, evenly spread.
PictureSurvey survey_pictures(const ImageSource& pictures, const fs::path& folder);

}  // namespace mnist_train::data
