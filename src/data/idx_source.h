#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "base/file.h"
#include "data/gzip_stream.h"
#include "data/image_source.h"

namespace mnist_train::data {

/// The payload of one IDX file (http://yann.lecun.com/exdb/mnist), raw or gzip-compressed.
struct IdxFile {
  std::vector<std::int64_t> shape;       // 1 to 4 dimensions, none of them 0
  std::span<const std::uint8_t> values;  // product(shape) unsigned bytes
  std::shared_ptr<const void> owner;
};

/// An IDX file of unsigned bytes, opened: the header is read and checked, the values are not yet.
/// Compression is known by its first bytes, not by the file's name. Throws Error(kData) naming file
/// and byte offset (in inflated data where the file is compressed): bad magic, another element
/// type, a dimension of 0, a size that the file cannot hold, too few or too many bytes, a broken
/// gzip stream.
class IdxReader {
 public:
  explicit IdxReader(const std::filesystem::path& path);

  const std::string& name() const { return name_; }
  const std::vector<std::int64_t>& shape() const { return shape_; }
  bool compressed() const { return gzip_ != nullptr; }

  /// Inflates the first values into `values`, and checks that the file ends with the last ones, or
  /// takes them from the user's cache, where a file that was inflated and checked is kept.
  /// Only for a compressed file, and called once.
  void inflate_into(std::span<std::uint8_t> values);

  /// Returns the values where they are mapped, or inflated into memory of their own: of exactly the
  /// size that the header states, page by page, so that a lying header costs nothing. Called once
  /// for a compressed file.
  IdxFile read();

  /// Throws Error(kData) about the value at `index`.
  [[noreturn]] void fail_at_value(std::size_t index, const std::string& problem) const;

 private:
  std::size_t next(std::span<std::uint8_t> out);
  void read_magic();
  void read_shape();
  void check_size() const;
  std::size_t header_size() const { return 4 + 4 * shape_.size(); }
  std::string shape_text() const;
  [[noreturn]] void fail(std::size_t offset, const std::string& problem) const;

  std::string name_;
  std::shared_ptr<const MappedFile> file_;
  std::unique_ptr<GzipStream> gzip_;  // none: the file is raw
  std::size_t position_ = 0;          // of the next byte, in the raw or inflated data
  std::vector<std::int64_t> shape_;
  std::size_t size_ = 0;
};

/// The two files of a split.
struct IdxFiles {
  std::filesystem::path images;
  std::filesystem::path labels;
};

/// Images [n,h,w] or [n,c,h,w] and their labels [n], opened and checked against each other. There
/// are `max_classes` classes, or, where that many are not known, the greatest label + 1. Throws
/// Error(kData) where counts differ, shapes do not fit, or a label is too great.
class IdxSource : public ImageSource {
 public:
  explicit IdxSource(const IdxFiles& files, std::int64_t max_classes = kMostClasses);

  std::string sample_name(std::int64_t sample) const override;
  /// Inflates a compressed file as a whole when it is first called.
  std::span<const std::uint8_t> read(std::int64_t sample,
                                     std::vector<std::uint8_t>& buffer) const override;
  std::span<const std::uint8_t> mapped_pixels() const override;
  /// Inflates a compressed file straight into `out`.
  bool read_first(std::int64_t count, std::uint8_t* out) override;

 private:
  void read_labels(const IdxFiles& files, std::int64_t max_classes);

  mutable IdxReader images_;
  mutable std::once_flag once_;
  mutable IdxFile pixels_;  // once `read` was called
};

}  // namespace mnist_train::data
