#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "data/idx_source.h"
#include "settings/data_options.h"
#include "settings/named_datasets.h"

namespace mnist_train::data {

enum class SplitName { kTrain, kTest };

/// Finds the folder that holds a data set's files, without opening any. It is looked for as a
/// folder of the data set's name in `root`, in each folder of the path list MNIST_TRAIN_DATA, in
/// `third_party` of the repository that the executable was built in and of the bundle that it lies
/// in, in the installation, and in the user's cache ($XDG_CACHE_HOME or ~/.cache, `mnist-train/`).
/// Throws Error(kData) naming every place.
std::filesystem::path find_named_dataset(const settings::NamedDataset& dataset,
                                         const std::optional<std::filesystem::path>& root);

/// Returns the command for a user to type that downloads a data set to where it is found.
std::string fetch_command(const settings::NamedDataset& dataset);

/// Throws Error(kData) where nothing lies at a split's location, with the command that makes such
/// data where there is one.
void require_there(const settings::DataLocation& location, SplitName split,
                   settings::DataFormat format);

/// Throws Error(kData) if the file is of a kind that no data.format reads, with what to do about
/// it.
void refuse_other_kind(const std::filesystem::path& path);

/// Finds the images file and the labels file of a split. The location is both files; or the images
/// file, whose labels file has the same name with "labels" instead of "images" and "idx1" instead
/// of "idx3"; or a folder, in which the split's names begin with "train", or with "t10k" or "test",
/// unless it has only one pair of files. Files may be raw or compressed by gzip. Throws
/// Error(kData) when there is no such pair, or more than one.
IdxFiles find_idx_files(const settings::DataLocation& location, SplitName split);

/// Finds the binary batches of CIFAR-10 of a split: data_batch_1.bin to data_batch_5.bin or
/// test_batch.bin in a folder, or one file by its name. Throws Error(kData) where one is missing.
std::vector<std::filesystem::path> find_cifar_files(const settings::DataLocation& location,
                                                    SplitName split);

}  // namespace mnist_train::data
