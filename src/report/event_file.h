#pragma once

#include <cstdint>
#include <filesystem>
#include <string_view>

#include "base/file.h"

namespace mnist_train::report {

/// Returns the CRC-32C (Castagnoli, RFC 3720) that protects records of TensorBoard's files.
std::uint32_t crc32c(std::string_view bytes);

/// A file of TensorFlow's records (tensorflow/core/lib/io/record_writer.cc): length, its checksum,
/// content, its checksum.
class EventFile {
 public:
  /// Opens the newest such file of the run folder and truncates it at the end of a record to at
  /// most `keep_bytes`, or starts a new one. Throws Error(kRunFailed).
  EventFile(const std::filesystem::path& folder, std::int64_t keep_bytes);

  /// Appends a whole record or nothing. Throws Error(kRunFailed).
  void append(std::string_view content);
  const std::filesystem::path& path() const { return path_; }
  /// Length of the file, which a checkpoint stores for `keep_bytes`.
  std::int64_t bytes() const { return bytes_; }

 private:
  std::int64_t end_of_records(std::int64_t limit) const;

  std::filesystem::path path_;
  UniqueFd fd_;
  std::int64_t bytes_ = 0;
};

}  // namespace mnist_train::report
