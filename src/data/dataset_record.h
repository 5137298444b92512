#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "settings/data_options.h"

namespace mnist_train::data {

struct Dataset;
struct LeftOut;

/// The parts of a run's `dataset.json` that are needed to evaluate it.
struct DatasetRecord {
  std::vector<std::string> class_names;  // by number
  std::vector<std::string> test;         // paths of the drawn test set; empty if none was drawn
  std::int64_t samples = 0;              // all that were found, left out by limits or not
};

/// Reads `dataset.json`. Throws Error(kData) if it is not one.
DatasetRecord read_dataset_record(const std::filesystem::path& file);

/// Returns the `dataset.json` of the run that wrote a checkpoint or weights file: beside it, or
/// beside its folder `checkpoints`. Empty if there is none.
std::filesystem::path find_dataset_record(const std::filesystem::path& weights);

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

}  // namespace mnist_train::data
