#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "data/image_source.h"
#include "settings/data_options.h"

namespace mnist_train::data {

/// Samples of one source or several, in an order of its own. Limits, hold-outs and samples that are
/// left out are views of views.
///
///   const SampleView all({cats, dogs});                      // one source behind the other
///   const SampleView some = all.select(positions({0, 100}));  // its first hundred samples
class SampleView {
 public:
  /// Makes a view of no samples.
  SampleView() = default;
  /// Makes a view of all samples of the sources, one source behind the other.
  explicit SampleView(std::vector<std::shared_ptr<ImageSource>> sources);

  /// Returns a view of the samples at these positions of this one, in this order.
  SampleView select(const std::vector<std::int64_t>& positions) const;

  std::int64_t count() const { return static_cast<std::int64_t>(samples_.size()); }
  /// Returns how many of the samples are of each source.
  std::vector<std::int64_t> parts() const;
  const std::vector<std::shared_ptr<ImageSource>>& sources() const { return sources_; }
  /// Returns the name of the first source, for messages.
  const std::string& name() const { return sources_.front()->name(); }
  /// Returns a hash of the sources' hashes and of all selections since, as "xxh3-128:…".
  const std::string& hash() const { return hash_; }

  // These are about the sample at a position, and as in ImageSource.
  std::int32_t label(std::int64_t position) const;
  std::string sample_name(std::int64_t position) const;
  std::span<const std::uint8_t> read(std::int64_t position,
                                     std::vector<std::uint8_t>& buffer) const;
  void decode(std::int64_t position, const ImageGeometry& geometry, std::uint8_t* out,
              std::vector<std::uint8_t>& buffer) const;

 private:
  struct PlacedSample {
    std::size_t source;
    std::int64_t sample;
  };
  const PlacedSample& at(std::int64_t position) const {
    return samples_[static_cast<std::size_t>(position)];
  }

  std::vector<std::shared_ptr<ImageSource>> sources_;
  std::vector<PlacedSample> samples_;
  std::string hash_;
};

/// Images that are decoded as they are used.
struct EncodedImages {
  SampleView samples;
  ImageGeometry geometry;  // what they are brought to
  settings::Decode decode = settings::Decode::kStream;
  std::optional<std::int64_t> threads{};  // nothing: as many as the process computes with
};

/// Labelled images of one geometry: bytes in host memory, which are read-only, shared and never
/// copied, or encoded images that are decoded as they are used.
struct ImageSet {
  std::int64_t count = 0;
  std::int64_t channels = 1;
  std::int64_t height = 0;
  std::int64_t width = 0;
  std::int64_t classes = 0;              // labels lie in [0, classes)
  std::span<const std::uint8_t> images;  // [count,C,H,W] u8; empty where they are encoded
  std::span<const std::uint8_t> labels;  // [count] u8
  std::shared_ptr<const void> owner;     // keeps both spans alive
  std::string source;                    // the images file, for messages
  std::shared_ptr<const EncodedImages> encoded{};

  std::int64_t bytes_per_image() const { return channels * height * width; }
  /// Returns one image as planes [C,H,W], decoded if need be. Throws Error(kData).
  std::vector<std::uint8_t> image(std::int64_t sample) const;
};

/// A training and a test set of one geometry and one number of classes, what is held out of the
/// training set, and a hash of all samples, which resume and the summary use. A split that was not
/// asked for is empty.
struct Dataset {
  ImageSet train;
  ImageSet validation;  // empty unless data.validation holds samples out
  ImageSet test;
  std::string hash;                         // see hash_of
  std::vector<std::string> class_names{};   // by number, where the data have names
  std::vector<std::string> skipped{};       // bad samples that were left out, with the reason
  std::vector<std::int64_t> train_parts{};  // samples of each set of train_per_process, in order
};

/// Hashes the samples of all splits, in the order above: their pixels and labels, or the names,
/// sizes and labels of those that are decoded as they are used. Returns "xxh3-128:<32 hex digits>".
std::string hash_of(const Dataset& dataset);

}  // namespace mnist_train::data
