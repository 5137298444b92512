#pragma once

#include <memory>

#include "data/image_geometry.h"
#include "data/image_source.h"

namespace mnist_train::data {

/// Another source's images, brought to data.size and data.channels as they are read.
class ReshapedSource : public ImageSource {
 public:
  /// Throws Error(kData) where the images have neither 1 nor 3 channels.
  ReshapedSource(std::unique_ptr<ImageSource> inner, const settings::DataOptions& options);

  const ImageSet& outline() const override { return outline_; }
  std::size_t image_bytes() const override;
  std::size_t label_bytes() const override { return inner_->label_bytes(); }
  ImageSet read() override;
  ImageSet read_into(std::span<std::uint8_t> images, std::span<std::uint8_t> labels,
                     std::shared_ptr<const void> owner) override;

 private:
  std::unique_ptr<ImageSource> inner_;
  ImageGeometry geometry_;
  ImageSet outline_;
};

}  // namespace mnist_train::data
