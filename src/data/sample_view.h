#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "data/image_source.h"

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

}  // namespace mnist_train::data
