#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>

#include "data/epoch_draws.h"
#include "settings/augment_options.h"

namespace mnist_train::loader {

/// One entry of data.augment at work on all images of a batch at once, on their device. Images are
/// [n,C,H,W], contiguous: bytes (u8) until a normalize makes them f32. Bytes stay whole numbers: an
/// entry that computes rounds them.
class Augmentation {
 public:
  virtual ~Augmentation() = default;

  /// Returns how many numbers are drawn for each sample.
  virtual std::int64_t columns() const { return 0; }
  /// Writes the numbers of `sample`, an index in the training set; called once an epoch for each.
  virtual void draw(const data::EpochDraws& /*draws*/, std::int64_t /*sample*/,
                    float* /*out*/) const {}
  /// Changes images by what was drawn for them, [n,columns()] f32 on the device.
  virtual at::Tensor apply(const at::Tensor& images, const at::Tensor& drawn) const = 0;
  /// Changes test images as far as they need it: their size and type, and nothing random.
  virtual at::Tensor apply_to_test(const at::Tensor& images) const { return images; }
  /// Returns whether `apply_to_test` does anything.
  virtual bool changes_test() const { return false; }
};

/// Makes the augmentation of any entry but mixup, which takes more than one sample, from its
/// position in the list and the size of the images that come to it. A new kind is a class and a row
/// in augmentation.cpp.
std::unique_ptr<Augmentation> make_augmentation(const settings::AugmentationOptions& entry,
                                                std::uint64_t position, settings::ImageSize size,
                                                at::Device device);

}  // namespace mnist_train::loader
