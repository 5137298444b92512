#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace mnist_train::data {

struct EncodedImages;

/// Labelled images in host memory, read-only, shared and never copied.
struct ImageSet {
  std::int64_t count = 0;
  std::int64_t channels = 1;
  std::int64_t height = 0;
  std::int64_t width = 0;
  std::int64_t classes = 0;              // labels lie in [0, classes)
  std::span<const std::uint8_t> images;  // [count, channels, height, width] u8
  std::span<const std::uint8_t> labels;  // [count] u8
  std::shared_ptr<const void> owner;     // keeps both spans alive
  std::string source;                    // the images file, for messages
  // Where it is set, images are decoded as they are used, and `images` is empty.
  std::shared_ptr<const EncodedImages> encoded{};

  std::int64_t bytes_per_image() const { return channels * height * width; }
  /// One image [channels, height, width], decoded if need be. Throws Error(kData).
  std::vector<std::uint8_t> image(std::int64_t sample) const;
};

/// A training and a test set of one geometry and one number of classes, what is held out of the
/// training set, and a hash of all samples (for resume and the summary).
struct Dataset {
  ImageSet train;
  ImageSet validation;  // without samples unless the options hold some out
  ImageSet test;
  std::string hash;  // "xxh3-128:<32 hex digits>" of the uncompressed samples that are used
  std::vector<std::string> class_names{};   // where the data has names, by number
  std::vector<std::string> skipped{};       // bad samples that were left out, with the reason
  std::vector<std::int64_t> train_parts{};  // train_per_process: how many of each, in order
};

}  // namespace mnist_train::data
