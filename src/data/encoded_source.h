#pragma once

#include <atomic>
#include <memory>

#include "data/encoded_set.h"
#include "data/image_geometry.h"
#include "data/image_source.h"

namespace mnist_train::data {

/// The images of an EncodedSet, decoded by all processors of this process and brought to one
/// geometry, so that an epoch decodes nothing.
class EncodedSource : public ImageSource {
 public:
  /// `bad` has to live as long. `cancelled`: reading is to end, with an Error that nobody will see;
  /// may be null. Throws Error(kData): more than 256 classes, more bytes than there is memory.
  EncodedSource(std::shared_ptr<const EncodedSet> set, const ImageGeometry& geometry,
                BadSamples& bad, const std::atomic<bool>* cancelled);

  const ImageSet& outline() const override { return outline_; }
  void limit(std::int64_t count) override { outline_.count = count; }
  std::size_t image_bytes() const override;
  std::size_t label_bytes() const override { return static_cast<std::size_t>(outline_.count); }
  ImageSet read() override;
  ImageSet read_into(std::span<std::uint8_t> images, std::span<std::uint8_t> labels,
                     std::shared_ptr<const void> owner) override;

 private:
  std::shared_ptr<const EncodedSet> set_;
  ImageGeometry geometry_;
  BadSamples& bad_;
  const std::atomic<bool>* cancelled_;
  ImageSet outline_;
};

/// Labels are held as bytes. Throws Error(kData) naming a sample of the greatest class where there
/// are more than 256.
void require_classes_fit(const EncodedSet& set);

/// What the first good image of a set has, where `options` do not say it. Throws Error(kData) where
/// there is none.
ImageGeometry geometry_of(const EncodedSet& set, const settings::DataOptions& options,
                          BadSamples& bad);

}  // namespace mnist_train::data
