#pragma once

#include <cstdint>
#include <filesystem>
#include <string_view>

#include "base/file.h"

namespace mnist_train::report {

/// A file of records as TensorFlow frames them (tensorflow/core/lib/io/record_writer.cc): length,
/// its checksum, content, its checksum.
class EventFile {
 public:
  /// Opens the run folder's newest file of that kind and cuts it back to at most `keep_bytes`, at
  /// the end of a record; or begins one. Throws Error(kRunFailed).
  EventFile(const std::filesystem::path& folder, std::int64_t keep_bytes);

  /// Appends a record, whole or not at all. Throws Error(kRunFailed).
  void append(std::string_view content);
  const std::filesystem::path& path() const { return path_; }
  /// What a checkpoint notes for `keep_bytes`.
  std::int64_t bytes() const { return bytes_; }

 private:
  std::int64_t end_of_records(std::int64_t limit) const;

  std::filesystem::path path_;
  UniqueFd fd_;
  std::int64_t bytes_ = 0;
};

}  // namespace mnist_train::report
