#pragma once

#include <memory>

#include "loader/augmenter.h"

namespace mnist_train::loader {

/// Makes an entry of data.augment that computes image by image: random_resized_crop, color_jitter
/// and trivial_augment; null for others. On CPUs plain loops of picture_operations.h do it, on all
/// threads; on GPUs operations of LibTorch, for all images of a batch at once, which differ by at
/// most one level.
std::unique_ptr<Augmentation> make_picture_augmentation(const settings::AugmentationOptions& entry,
                                                        settings::ImageSize size,
                                                        at::Device device);

/// What the GPU computes; also for tests on a CPU. `drawn` is as in Augmentation::apply.
at::Tensor resized_by_tensors(const at::Tensor& images, const at::Tensor& windows,
                              settings::ImageSize size);
at::Tensor jittered_by_tensors(const at::Tensor& images, const at::Tensor& drawn);
at::Tensor trivially_changed_by_tensors(const at::Tensor& images, const at::Tensor& drawn);

}  // namespace mnist_train::loader
