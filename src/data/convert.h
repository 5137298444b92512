#pragma once

#include <functional>

#include "data/sources.h"

namespace mnist_train::data {

enum class ConvertTarget { kLmdb, kImageFolder };

struct ConvertOptions {
  fs::path from;  // a folder of IDX files
  ConvertTarget target = ConvertTarget::kLmdb;
  fs::path to;                          // must not exist, or be empty
  bool jpeg = false;                    // otherwise PNG, which is lossless
  int quality = 95;                     // of JPEG
  std::function<void()> before_each{};  // called before each image; an exception ends the work
};

struct Converted {
  std::int64_t train = 0;
  std::int64_t test = 0;
};

/// Writes both splits of an IDX data set as `to`/train and `to`/test: Caffe2 LMDBs with keys
/// 00000000, 00000001, …, in the order of the IDX file, or folders <class>/<position>.png (or
/// .jpg). The folder `to` appears complete or not at all. Throws Error(kData) if reading fails and
/// Error(kRunFailed) if writing does.
Converted convert(const ConvertOptions& options);

/// Returns the message that holds an encoded image and its label, as parse_caffe2_record reads it.
std::string write_caffe2_record(const std::string& image, std::int32_t label);

/// Returns the key and the value of an entry by its number.
using EntryAt = std::function<std::pair<std::string, std::string>(std::int64_t number)>;

/// Writes an LMDB of one unnamed table of `count` entries in a new folder, in the order of their
/// keys, and syncs it. Throws Error(kRunFailed); the database is then incomplete.
void write_lmdb(const fs::path& folder, std::int64_t count, const EntryAt& entry_at);

}  // namespace mnist_train::data
