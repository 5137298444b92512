#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/file.h"
#include "data/gzip_stream.h"

namespace mnist_train::data {

/// The payload of one IDX file (http://yann.lecun.com/exdb/mnist), raw or gzip-compressed.
struct IdxFile {
  std::vector<std::int64_t> shape;       // 1 to 4 dimensions, none of them 0
  std::span<const std::uint8_t> values;  // product(shape) elements, as stored
  std::shared_ptr<const void> owner;
};

/// An opened IDX file of integers of 8, 16 or 32 bits: the header is read and checked, but not the
/// values. Compression is recognised by the first bytes, not by the file's name. Throws
/// Error(kData) naming file and byte offset (in the inflated data if the file is compressed): bad
/// magic, another element type, a dimension of 0, a size that the file cannot hold, too few or too
/// many bytes, a broken gzip stream.
class IdxReader {
 public:
  explicit IdxReader(const std::filesystem::path& path);

  const std::string& name() const { return name_; }
  const std::vector<std::int64_t>& shape() const { return shape_; }
  bool compressed() const { return gzip_ != nullptr; }
  /// Returns whether the elements are unsigned bytes.
  bool holds_bytes() const;

  /// Inflates all values into `values` and checks that the file ends with them; or copies them from
  /// the user's cache of inflated files. Only for a compressed file, once.
  void inflate_into(std::span<std::uint8_t> values);

  /// Returns the values, mapped or inflated. Memory for inflated ones is provided page by page as
  /// it is written, so a lying header costs nothing. Called once for a compressed file.
  IdxFile read();
  /// Reads every `stride`th element as a number in [0, limit). Throws Error(kData) for another one,
  /// with its offset and `what` it is.
  std::vector<std::int32_t> read_numbers(std::size_t stride, std::int64_t limit, const char* what);

 private:
  void read_header();
  void check_size() const;
  std::size_t element_bytes() const;
  std::string shape_text() const;
  [[noreturn]] void fail(std::size_t offset, const std::string& problem) const;

  std::string name_;
  std::shared_ptr<const MappedFile> file_;
  std::unique_ptr<GzipStream> gzip_;  // null: the file is raw
  std::vector<std::uint8_t> header_;
  std::uint8_t type_ = 0;  // of the elements
  std::vector<std::int64_t> shape_;
  std::size_t size_ = 0;  // of all values, in bytes
};

}  // namespace mnist_train::data
