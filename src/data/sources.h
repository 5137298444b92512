#pragma once

#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "data/image_source.h"
#include "settings/data_options.h"
#include "settings/named_datasets.h"

namespace mnist_train::data {

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
void refuse_other_kind(const std::filesystem::path& path);

/// Finds the folder that holds a data set's files, without opening any: a folder of the data set's
/// name, or of the name that torchvision gives it, in `root`, in a folder of the path list
/// MNIST_TRAIN_DATA, in `third_party` of the repository or bundle of the executable, in the
/// installation, or in the user's cache
/// ($XDG_CACHE_HOME or ~/.cache, `mnist-train/`). Throws Error(kData) listing all these places.
std::filesystem::path find_named_dataset(const settings::NamedDataset& dataset,
                                         const std::optional<std::filesystem::path>& root);

/// Returns the command that a user types to download a data set into a folder that is searched.
std::string fetch_command(const settings::NamedDataset& dataset);

/// The two files of a split.
struct IdxFiles {
  std::filesystem::path images;
  std::filesystem::path labels;
};

/// Finds the images file and the labels file of a split. The location is both files; or the images
/// file, whose labels file has the same name with "labels" instead of "images" and "idx1" instead
/// of "idx3" (or QMNIST's, with "idx2-int"); or a folder, in which the split's names begin with
/// "train", or with "t10k" or "test", unless it has only one pair of files; or a folder above the
/// only one that holds images. Files may be raw or compressed by gzip, and each may be in a folder
/// of its own name. Throws Error(kData) if there is no such pair, or more than one.
IdxFiles find_idx_files(const settings::DataLocation& location, SplitName split);

/// Finds the binary batches of CIFAR-10 of a split: data_batch_1.bin to data_batch_5.bin or
/// test_batch.bin in a folder, or one file by its name. Throws Error(kData) if one is missing.
std::vector<std::filesystem::path> find_cifar_files(const settings::DataLocation& location,
                                                    SplitName split);

// One function for each data.format, each in its own file.

/// Opens images [n,h,w] or [n,c,h,w] and their labels [n] and checks them against each other. There
/// are `max_classes` classes or, by default, the greatest label + 1. Throws Error(kData) if counts
/// differ, shapes do not fit, or a label is too large.
std::shared_ptr<ImageSource> open_idx(const IdxFiles& files,
                                      std::int64_t max_classes = ImageSource::kMostClasses);

/// Opens binary batches of CIFAR-10 (https://www.cs.toronto.edu/~kriz/cifar.html), in order:
/// records of a label from 0 to 9 in one byte and of 3 x 32 x 32 bytes, the planes red, green and
/// blue. Checks all labels. Throws Error(kData) with file and byte offset for an empty file, one
/// that ends within a record, and a label out of range.
std::shared_ptr<ImageSource> open_cifar(const std::vector<std::filesystem::path>& files);

/// Lists a folder of class folders of pictures (imaging::kPictureExtensions) as torchvision's
/// ImageFolder does: the sorted names of the class folders are the classes, and class folders may
/// be nested. Files of other kinds, folders without pictures, and folders that are hidden or made
/// by other programs are left out. A folder that holds pictures itself is one class of that
/// folder's name. No file is opened. Throws Error(kData) naming the file for an empty file, a name
/// with control bytes or broken UTF-8, links in a circle, and pictures beside class folders.
std::shared_ptr<ImageSource> open_image_folder(const std::filesystem::path& folder,
                                               BadSamples& bad);

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
std::shared_ptr<ImageSource> open_image_list(const std::filesystem::path& file,
                                             const ListKind& kind, BadSamples& bad);

/// Opens a Caffe2 LMDB, given as its folder or its file. Samples are in the order of their keys;
/// every record's frame is read, but not its image. There are as many classes as the greatest label
/// + 1. The database must not be written to meanwhile; it is never written to here, not even its
/// lock file, so it may be on a read-only file system. Throws Error(kData) naming file and key for
/// a database that is missing, damaged, locked or empty, and for a record of another kind.
std::shared_ptr<ImageSource> open_lmdb(const std::filesystem::path& path, BadSamples& bad);

/// Draws digits of MNIST's geometry, for machines without data: strokes, rotated, sheared, scaled,
/// shifted and of varying width. Samples are numbered [first, first + count) and depend on their
/// number alone; labels repeat 0 to 9.
std::shared_ptr<ImageSource> draw_digits(std::int64_t first, std::int64_t count);

}  // namespace mnist_train::data
