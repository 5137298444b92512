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

  /// How many numbers are drawn for each sample.
  virtual std::int64_t columns() const { return 0; }
  /// Writes them for `sample`, an index in the training set. Called once an epoch for each sample.
  virtual void draw(const data::EpochDraws& draws, std::int64_t sample, float* out) const;
  /// `drawn` [n, columns()] f32, on the device.
  virtual at::Tensor apply(const at::Tensor& images, const at::Tensor& drawn) const = 0;
  /// What test images need of it: their size and type, and nothing random.
  virtual at::Tensor apply_to_test(const at::Tensor& images) const { return images; }
  virtual bool changes_test() const { return false; }
};

/// The step of one entry but mixup, which takes more than one sample. `position`: in the list;
/// `size`: of the images that come to it. A new kind is a file and a row in step.cpp.
std::unique_ptr<Augmentation> make_augmentation(const settings::AugmentationOptions& entry,
                                                std::uint64_t position, settings::ImageSize size,
                                                at::Device device);

std::unique_ptr<Augmentation> make_random_crop(const settings::RandomCropOptions& options,
                                               std::uint64_t position, settings::ImageSize size);
std::unique_ptr<Augmentation> make_horizontal_flip(const settings::HorizontalFlipOptions& options,
                                                   std::uint64_t position);
std::unique_ptr<Augmentation> make_rotate(const settings::RotateOptions& options,
                                          std::uint64_t position, settings::ImageSize size);
std::unique_ptr<Augmentation> make_resize(const settings::ResizeOptions& options);
std::unique_ptr<Augmentation> make_normalize(const settings::NormalizeOptions& options,
                                             at::Device device);
std::unique_ptr<Augmentation> make_cutout(const settings::CutoutOptions& options,
                                          std::uint64_t position, settings::ImageSize size);

/// Computed values as the type of `images`: bytes are rounded and kept in range.
at::Tensor as_type_of(const at::Tensor& images, const at::Tensor& values);

}  // namespace mnist_train::loader
