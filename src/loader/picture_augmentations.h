#pragma once

#include <memory>

#include "loader/augmenter.h"

namespace mnist_train::loader {

/// Entries of data.augment that compute image by image. On CPUs plain loops of
/// picture_operations.h do it, on all threads; on GPUs operations of LibTorch, for all images of a
/// batch at once, which differ by at most one level.
std::unique_ptr<Augmentation> make_random_resized_crop(
    const settings::RandomResizedCropOptions& options, std::uint64_t position,
    settings::ImageSize size, at::Device device);
std::unique_ptr<Augmentation> make_color_jitter(const settings::ColorJitterOptions& options,
                                                std::uint64_t position, settings::ImageSize size,
                                                at::Device device);
std::unique_ptr<Augmentation> make_trivial_augment(const settings::TrivialAugmentOptions& options,
                                                   std::uint64_t position, settings::ImageSize size,
                                                   at::Device device);

/// What the GPU computes; also for tests on a CPU. `drawn` is as in Augmentation::apply.
at::Tensor resized_by_tensors(const at::Tensor& images, const at::Tensor& windows,
                              settings::ImageSize size);
at::Tensor jittered_by_tensors(const at::Tensor& images, const at::Tensor& drawn);
at::Tensor trivially_changed_by_tensors(const at::Tensor& images, const at::Tensor& drawn);

}  // namespace mnist_train::loader
