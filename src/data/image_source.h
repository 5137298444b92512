#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/error.h"
#include "imaging/image.h"

namespace mnist_train::data {

/// The channels and the size of images, and whether images of others are brought to them.
struct ImageGeometry {
  std::int64_t channels = 1;
  std::int64_t height = 0;
  std::int64_t width = 0;
  bool fits_channels = false;  // data.channels asks for it; else other channels are an error
  bool fits_size = false;      // the same of data.size

  std::int64_t bytes() const { return channels * height * width; }
  bool same_shape(const ImageGeometry& other) const {
    return channels == other.channels && height == other.height && width == other.width;
  }
  /// Returns channels, height and width for messages, such as "3 x 244 x 244".
  std::string text() const;
};

/// Throws Error(kData) with `name` where an image of `own` geometry differs from what is wanted,
/// and the options do not ask to change it.
void require_geometry(const ImageGeometry& own, const ImageGeometry& wanted,
                      const std::string& name);

/// Returns the image whose planes [C,H,W] these are.
imaging::Image from_planes(std::span<const std::uint8_t> planes, const ImageGeometry& geometry);

/// Collects what is wrong with single samples: the first one is an Error, or all of them are listed
/// and left out.
class BadSamples {
 public:
  explicit BadSamples(bool skip) : skip_(skip) {}

  bool skips() const { return skip_; }
  /// Takes a message that begins with the sample's name. Throws Error(kData) with it unless bad
  /// samples are skipped.
  void add(const std::string& message) {
    if (!skip_) throw Error(ExitCode::kData, message);
    skipped_.push_back(message);
  }
  const std::vector<std::string>& skipped() const { return skipped_; }

 private:
  bool skip_;
  std::vector<std::string> skipped_;
};

/// Labelled images in the files of one format, opened: their labels and classes are known, pixels
/// are read when they are asked for, by several threads at once if need be. A source holds either
/// pixels of one geometry or encoded images, each with its own.
class ImageSource {
 public:
  static constexpr std::int64_t kMostClasses = 256;  // labels become bytes

  virtual ~ImageSource() = default;

  std::int64_t count() const { return static_cast<std::int64_t>(labels_.size()); }
  /// Returns the class of each sample, [count], from 0 to classes() - 1.
  const std::vector<std::int32_t>& labels() const { return labels_; }
  std::int64_t classes() const { return classes_; }
  /// Returns the names of the classes by number, or nothing where the files have none.
  const std::vector<std::string>& class_names() const { return class_names_; }
  /// Returns the path of the file, folder or database, for messages.
  const std::string& name() const { return name_; }
  /// Returns a hash of the names, sizes and labels of encoded images, as "xxh3-128:…"; empty for
  /// pixels, whose bytes are hashed when they are read.
  const std::string& hash() const { return hash_; }
  /// Returns the geometry of samples that are stored as pixels; nothing where they are encoded.
  const std::optional<ImageGeometry>& geometry() const { return geometry_; }

  /// Returns the name of a sample for messages: its file, or the file and its position in it.
  virtual std::string sample_name(std::int64_t sample) const = 0;
  /// Returns the bytes of a sample as they are stored: planes [C,H,W], or a PNG or JPEG file, in
  /// memory of the source, or in `buffer`. Throws Error(kData) with the sample's name.
  virtual std::span<const std::uint8_t> read(std::int64_t sample,
                                             std::vector<std::uint8_t>& buffer) const = 0;
  /// Writes a sample to `out` as planes [C,H,W] of `geometry`. Throws Error(kData) with its name.
  void decode(std::int64_t sample, const ImageGeometry& geometry, std::uint8_t* out,
              std::vector<std::uint8_t>& buffer) const;

  /// Returns all pixels [count,C,H,W] where they lie so in a mapped file; else nothing.
  virtual std::span<const std::uint8_t> mapped_pixels() const { return {}; }
  /// Writes the pixels of the first `count` samples to `out` and checks the rest of the files.
  /// Called once at most. Returns false, having done nothing, where `read` is as fast.
  virtual bool read_first(std::int64_t /*count*/, std::uint8_t* /*out*/) { return false; }

  /// Numbers the classes as in `names`, which is sorted. Throws Error(kData) for a class that is
  /// not among them, and notes those of them that are missing here in `bad`.
  void use_classes(const std::vector<std::string>& names, BadSamples& bad);
  /// Throws Error(kData) with the name of a sample where there are more classes than labels can
  /// tell apart.
  void require_classes_fit() const;

 protected:
  std::vector<std::int32_t> labels_;
  std::int64_t classes_ = 0;
  std::vector<std::string> class_names_;
  std::string name_;
  std::string hash_;
  std::optional<ImageGeometry> geometry_;
};

}  // namespace mnist_train::data
