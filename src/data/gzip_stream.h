#pragma once

#include "base/file.h"
#include "data/sources.h"

struct z_stream_s;  // zlib's, NOLINT(readability-identifier-naming)

namespace mnist_train::data {

/// Decompresses an in-memory gzip file (RFC 1952) of one or more members. The memory must outlive
/// this object. Throws Error(kData) with the name and offsets in compressed and decompressed data.
class GzipStream {
 public:
  GzipStream(Bytes compressed, std::string name);
  ~GzipStream();

  /// Returns whether the bytes start with the gzip magic number.
  static bool recognizes(Bytes bytes);

  /// Decompresses the next bytes into `out` and returns their number, which is less than requested
  /// only at the end of the last member. Checks each member's length and checksum at its end.
  std::size_t read(std::span<std::uint8_t> out);

  /// Throws Error(kData) unless the stream has ended and is not followed by other data.
  void expect_end() const;

 private:
  [[noreturn]] void fail(const std::string& problem) const;

  Bytes compressed_;
  std::string name_;
  std::size_t consumed_ = 0;
  std::size_t produced_ = 0;
  bool ended_ = false;
  std::unique_ptr<z_stream_s> zlib_;
};

/// Returns the decompressed content of a gzip file from the user's cache, as stored by
/// `keep_inflated`, or null if it is missing or has changed. Decompressing MNIST's 47 MB takes a
/// tenth of a second; checking the hash takes five milliseconds.
std::shared_ptr<const MappedFile> find_inflated(Bytes compressed);

/// Stores the decompressed content of a gzip file in the folder `inflated` of the user's cache,
/// unless the file is small or the content is huge. Removes all but the eight most recently used
/// files. Failures are ignored: the next run decompresses again.
void keep_inflated(Bytes compressed, Bytes content);

}  // namespace mnist_train::data
