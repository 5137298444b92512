#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "base/file.h"

struct z_stream_s;  // zlib's, NOLINT(readability-identifier-naming)

namespace mnist_train::data {

/// Inflates a gzip file (RFC 1952) of one or several members, which are concatenated. The file is
/// in memory and outlives this object. Throws Error(kData) with the name and the offsets in the
/// compressed and the inflated data.
class GzipStream {
 public:
  GzipStream(std::span<const std::uint8_t> compressed, std::string name);
  GzipStream(const GzipStream&) = delete;
  GzipStream& operator=(const GzipStream&) = delete;
  ~GzipStream();

  /// Returns whether the bytes begin like a gzip file.
  static bool recognizes(std::span<const std::uint8_t> bytes);

  /// Inflates the next bytes into `out` and returns their number: fewer than asked only at the end
  /// of the last member. At the end of a member its length and checksum are checked.
  std::size_t read(std::span<std::uint8_t> out);

  /// Throws Error(kData) unless the stream has ended and nothing follows it in the file.
  void expect_end() const;

 private:
  std::size_t inflate_some(std::span<std::uint8_t> out);
  [[noreturn]] void fail(const std::string& problem) const;

  std::span<const std::uint8_t> compressed_;
  std::string name_;
  std::size_t consumed_ = 0;
  std::size_t produced_ = 0;
  bool ended_ = false;
  std::unique_ptr<z_stream_s> zlib_;
};

/// Returns the content of a gzip file from the user's cache, where `keep_inflated` wrote it; null
/// if it is not there or was changed since. Inflating the 47 MB of MNIST takes a tenth of a second,
/// checking their hash five milliseconds.
std::shared_ptr<const MappedFile> find_inflated(std::span<const std::uint8_t> compressed);

/// Keeps the content of a gzip file, a header followed by values, in the folder `inflated` of the
/// user's cache, unless it is small or huge. Removes all but the eight most recently used files
/// there. A failure is no error: the next run inflates again.
void keep_inflated(std::span<const std::uint8_t> compressed, std::span<const std::uint8_t> header,
                   std::span<const std::uint8_t> values);

}  // namespace mnist_train::data
