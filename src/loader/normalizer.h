#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "data/dataset.h"
#include "settings/augment_options.h"

namespace mnist_train::loader {

/// Turns bytes into the input of a model as torchvision does: `(value / 255 - mean) / std` in fp32,
/// with channels_last strides, by tables that the host computes. The result of one call is valid
/// until the next one.
class Normalizer {
 public:
  /// `type` is that of the results, f32 or bf16.
  Normalizer(const settings::NormalizeOptions& normalize, at::Device device, at::ScalarType type);

  /// Returns the images of `samples` of a set in host memory, [n,C,H,W]. Only for a CPU.
  at::Tensor gather(const data::ImageSet& set, const std::vector<std::int64_t>& samples);
  /// Normalises bytes [n,C,H,W] u8 on the device.
  at::Tensor normalize(const at::Tensor& bytes);
  /// Converts normalised values [n,C,H,W] f32 to the type and the strides.
  at::Tensor convert(const at::Tensor& values);

 private:
  template <typename SampleAt>
  at::Tensor look_up_all(at::IntArrayRef sizes, const SampleAt& sample_at);
  at::Tensor buffer(at::IntArrayRef sizes);

  at::Device device_;
  at::ScalarType type_;
  at::Tensor tables_;  // see normalization_tables, of the images' type
  at::Tensor buffer_;  // CPU: memory of the images of one batch
};

/// Returns the value of each byte, [1,256] f32 for all channels or [C,256] for each, on the device.
at::Tensor normalization_tables(const settings::NormalizeOptions& normalize, at::Device device);

/// Returns mean or std as f32 that broadcasts to images [n,C,H,W] on the device: [] or [C,1,1].
at::Tensor per_channel(const settings::PerChannel& figures, at::Device device);

/// Returns an uninitialised [n,C,H,W] tensor whose strides are channels_last even for one channel:
/// `contiguous` would leave them as they are, and convolutions would run in their slow format.
at::Tensor empty_channels_last(at::IntArrayRef sizes, const at::TensorOptions& options);

}  // namespace mnist_train::loader
