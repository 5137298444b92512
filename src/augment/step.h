#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>

#include "data/epoch_draws.h"
#include "options/augment_options.h"

namespace mnist_train::augment {

/// One entry of data.augment at work on all images of a batch at once, on their device. Images are
/// [n,C,H,W], contiguous: bytes (u8) until a normalize makes them f32. Bytes stay whole numbers: an
/// entry that computes rounds them.
class Step {
 public:
  virtual ~Step() = default;

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
std::unique_ptr<Step> make_step(const options::Augmentation& entry, std::uint64_t position,
                                options::ImageSize size, at::Device device);

std::unique_ptr<Step> make_random_crop(const options::RandomCropOptions& options,
                                       std::uint64_t position, options::ImageSize size);
std::unique_ptr<Step> make_horizontal_flip(const options::HorizontalFlipOptions& options,
                                           std::uint64_t position);
std::unique_ptr<Step> make_rotate(const options::RotateOptions& options, std::uint64_t position,
                                  options::ImageSize size);
std::unique_ptr<Step> make_resize(const options::ResizeOptions& options);
std::unique_ptr<Step> make_normalize(const options::NormalizeOptions& options, at::Device device);
std::unique_ptr<Step> make_cutout(const options::CutoutOptions& options, std::uint64_t position,
                                  options::ImageSize size);

/// Computed values as the type of `images`: bytes are rounded and kept in range.
at::Tensor as_type_of(const at::Tensor& images, const at::Tensor& values);

}  // namespace mnist_train::augment
