#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace mnist_train::data {

/// Labelled images as encoded files (PNG, JPEG), listed but not decoded: what `image-folder` and
/// `lmdb` are. Safe to read from several threads at once.
class EncodedSet {
 public:
  virtual ~EncodedSet() = default;

  std::int64_t count() const { return static_cast<std::int64_t>(labels_.size()); }
  /// [count], each from 0 to classes - 1.
  const std::vector<std::int32_t>& labels() const { return labels_; }
  std::int64_t classes() const { return classes_; }
  /// A folder's class names in the order of their numbers; empty for an LMDB.
  const std::vector<std::string>& class_names() const { return class_names_; }
  /// The folder or database, for messages.
  const std::string& source() const { return source_; }
  /// Of names, sizes and labels, not of contents, which nobody has read: "xxh3-128:<hex>".
  const std::string& hash() const { return hash_; }

  /// For messages: the file, or the database and the key; control bytes are escaped.
  virtual std::string name(std::int64_t sample) const = 0;
  /// The file's bytes: of the mapped database, or read into `buffer`. Throws Error(kData) with
  /// name.
  virtual std::span<const std::uint8_t> read(std::int64_t sample,
                                             std::vector<std::uint8_t>& buffer) const = 0;

 protected:
  std::vector<std::int32_t> labels_;
  std::int64_t classes_ = 0;
  std::vector<std::string> class_names_;
  std::string source_;
  std::string hash_;
};

/// What is wrong with the samples of a set, and what follows: an Error at the first one, or a list
/// of those that are left out.
class BadSamples {
 public:
  explicit BadSamples(bool skip) : skip_(skip) {}

  bool skips() const { return skip_; }
  /// `message` begins with the name of the sample. Throws Error(kData) unless they are skipped.
  void note(const std::string& message);
  const std::vector<std::string>& skipped() const { return skipped_; }

 private:
  bool skip_;
  std::vector<std::string> skipped_;
};

}  // namespace mnist_train::data
