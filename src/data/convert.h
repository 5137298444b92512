#pragma once

#include <functional>
#include <string_view>

#include "data/sources.h"

struct MDB_env;  // LMDB's
struct MDB_txn;

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

/// Writes an LMDB of one unnamed table in a new folder. Entries are appended in the order of their
/// keys. Throws Error(kRunFailed).
class LmdbWriter {
 public:
  explicit LmdbWriter(const fs::path& folder);

  void append(std::string_view key, std::string_view value);
  /// Commits and syncs the entries; without it the database is incomplete.
  void finish();

 private:
  void commit();
  void require(int result, const char* action) const;

  std::string name_;
  std::unique_ptr<MDB_env, void (*)(MDB_env*)> environment_;
  std::unique_ptr<MDB_txn, void (*)(MDB_txn*)> transaction_;
  unsigned table_ = 0;
  std::int64_t appended_ = 0;
};

}  // namespace mnist_train::data
