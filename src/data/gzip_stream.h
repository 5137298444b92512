#pragma once

#include "base/file.h"
#include "data/sources.h"

struct z_stream_s;  // zlib's, NOLINT(readability-identifier-naming)

namespace mnist_train::data {

/// Inflates a gzip file (RFC 1952) of one or several members, which are concatenated. The file is
/// in memory and outlives this object. Throws Error(kData) with the name and the offsets in the
/// compressed and the inflated data.
class GzipStream {
 public:
  GzipStream(Bytes compressed, std::string name);
  GzipStream(const GzipStream&) = delete;
  GzipStream& operator=(const GzipStream&) = delete;
  ~GzipStream();

  /// Returns whether the bytes begin like a gzip file.
  static bool recognizes(Bytes bytes);

  /// Inflates the next bytes into `out` and returns their number: fewer than asked only at the end
  /// of the last member. At the end of a member its length and checksum are checked.
  std::size_t read(std::span<std::uint8_t> out);

  /// Throws Error(kData) unless the stream has ended and nothing follows it in the file.
  void expect_end() const;

 private:
  std::size_t inflate_some(std::span<std::uint8_t> out);
  [[noreturn]] void fail(const std::string& problem) const;

  Bytes compressed_;
  std::string name_;
  std::size_t consumed_ = 0;
  std::size_t produced_ = 0;
  bool ended_ = false;
  std::unique_ptr<z_stream_s> zlib_;
};

/// Returns the content of a gzip file from the user's cache, where `keep_inflated` wrote it; null
/// if it is not there or was changed since. Inflating the 47 MB of MNIST takes a tenth of a second,
/// checking their hash five milliseconds.
std::shared_ptr<const MappedFile> find_inflated(Bytes compressed);

/// Keeps the content of a gzip file in the folder `inflated` of the user's cache, unless it is
/// small or huge. Removes all but the eight most recently used files there. A failure is no error:
/// the next run inflates again.
void keep_inflated(Bytes compressed, Bytes content);

/// Writes the wanted files of a .tar.gz, whose SHA-256 was verified, into `folder`, each whole or
/// not at all. They are found by the last part of their names in the archive, which does not affect
/// where they are written; other files are skipped. Throws Error(kData) naming the archive if one
/// of them is missing or the archive is truncated.
void unpack(const fs::path& archive, const std::vector<settings::DatasetFile>& wanted,
            const fs::path& folder);

}  // namespace mnist_train::data
