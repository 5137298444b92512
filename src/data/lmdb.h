#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <string_view>

struct MDB_env;  // LMDB's
struct MDB_txn;

namespace mnist_train::data {

/// One sample of a Caffe2 LMDB: an encoded image and the number of its class.
struct Caffe2Record {
  std::span<const std::uint8_t> image;  // a JPEG or PNG file, within the record's bytes
  std::int64_t label = 0;
};

/// Reads a `TensorProtos` message of two tensors: the image (data_type STRING, one string) and the
/// label (INT32 or INT64, one number), as Caffe2's dataset tools write them and DALI's
/// `readers.caffe2` reads them. Copies nothing. Throws Error(kData) with `name` and the offset of
/// the wrong tensor.
Caffe2Record parse_caffe2_record(std::span<const std::uint8_t> bytes, const std::string& name);

/// Returns the message that holds an encoded image and its label.
std::string write_caffe2_record(const std::string& image, std::int32_t label);

/// Writes an LMDB of one unnamed table in a new folder. Entries are appended in the order of their
/// keys. Throws Error(kRunFailed).
class LmdbWriter {
 public:
  explicit LmdbWriter(const std::filesystem::path& folder);

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
