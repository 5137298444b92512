#pragma once

#include <functional>

#include "data/sources.h"

namespace mnist_train::data {

enum class ConvertTarget { kLmdb, kImageFolder };

struct ConvertOptions {
  fs::path from;  // a folder with IDX files
  ConvertTarget target = ConvertTarget::kLmdb;
  fs::path to;                          // a new or empty folder
  bool jpeg = false;                    // otherwise PNG, which is lossless
  std::function<void()> before_each{};  // called before each image; may throw to abort
};

struct Converted {
  std::int64_t train = 0;
  std::int64_t test = 0;
};

/// Writes both splits of an IDX data set to `to`/train and `to`/test: as Caffe2 LMDBs with keys
/// 00000000, 00000001, …, in the order of the IDX file, or as files <class>/<position>.png (or
/// .jpg). `to` is created complete or not at all. Throws Error(kConfig) unless `to` is new or empty
/// and can be created, Error(kData) if reading fails or images have neither 1 nor 3 channels, and
/// Error(kRunFailed) if writing fails.
Converted convert(const ConvertOptions& options);

/// Serialises an encoded image and its label in the format that parse_caffe2_record reads.
std::string write_caffe2_record(const std::string& image, std::int32_t label);

/// Returns the key and value of entry `number`, counted from 0.
using EntryAt = std::function<std::pair<std::string, std::string>(std::int64_t number)>;

/// Creates and syncs an LMDB in a new folder, with `count` entries in its unnamed database. Entries
/// must be in key order. On failure, throws Error(kRunFailed) and leaves an incomplete database.
void write_lmdb(const fs::path& folder, std::int64_t count, const EntryAt& entry_at);

}  // namespace mnist_train::data
