#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <cstdint>
#include <vector>

#include "batch/batch.h"
#include "data/image_set.h"
#include "data/sampler.h"
#include "options/data_options.h"

namespace mnist_train::batch {

/// An image set that lies as bytes on the device that uses it: on a CPU the shared host memory
/// itself, on a GPU a copy made once. Batches are gathered and normalised there, as torchvision
/// does it: `(value / 255 - mean) / std` in fp32.
///
/// Batches of one object reuse their memory: a batch is valid until the next one is taken.
class ResidentImages {
 public:
  ResidentImages(data::ImageSet images, const options::NormalizeOptions& normalize,
                 at::Device device, at::ScalarType type = at::kFloat);

  std::int64_t count() const { return set_.count; }
  const data::ImageSet& images() const { return set_; }

  /// Fixes the order that `gather` counts in: a permutation of [0, count), uploaded once an epoch.
  void set_order(std::vector<std::int64_t> order);
  /// The samples at positions `range` of the order.
  Batch gather(data::Range range);
  /// The samples `range` as they are stored.
  Batch slice(data::Range range);

 private:
  template <typename Value>
  void look_up(const std::int64_t* indices, std::int64_t count, Value* out) const;
  Batch gather_on_host(const std::int64_t* indices, std::int64_t count);
  Batch normalise_on_device(const at::Tensor& bytes, const at::Tensor& labels) const;
  at::Tensor host_images(std::int64_t count);

  data::ImageSet set_;
  at::Device device_;
  at::ScalarType type_;  // of the batches' images: f32 or bf16
  float mean_;
  float std_;
  std::array<float, 256> normalised_{};  // of each byte value
  std::array<at::BFloat16, 256> normalised_bf16_{};
  std::vector<std::int64_t> order_;
  at::Tensor buffer_;         // CPU: memory of the images of one batch
  at::Tensor device_bytes_;   // GPU: [count, C, H, W] u8
  at::Tensor device_labels_;  // GPU: [count] i64
  at::Tensor device_order_;   // GPU: [count] i64
  at::Tensor device_255_;     // GPU: scalar f32, as the two below
  at::Tensor device_mean_;
  at::Tensor device_std_;
};

/// An uninitialised [n,C,H,W] f32 tensor whose strides are channels_last even for one channel,
/// where `contiguous` would leave them as they are and convolutions would run in their slow format.
at::Tensor empty_channels_last(at::IntArrayRef sizes, const at::TensorOptions& options);

}  // namespace mnist_train::batch
