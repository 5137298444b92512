#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>

namespace mnist_train::data {

enum class ConvertTarget { kLmdb, kImageFolder };

struct ConvertOptions {
  std::filesystem::path from;  // a folder of IDX files
  ConvertTarget target = ConvertTarget::kLmdb;
  std::filesystem::path to;             // must not exist, or be empty
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

}  // namespace mnist_train::data
