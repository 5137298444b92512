#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>

namespace mnist_train::kernels {

/// Which samples a batch is made of. All tensors are contiguous and on one GPU.
struct BatchSamples {
  std::int64_t count;  // of the batch
  at::Tensor rows;     // [samples, ...]: an image each, of any type
  at::Tensor labels;   // [samples] i64
  at::Tensor order{};  // [n] i64 of samples; undefined: all of them, as they are stored
  at::Tensor seeds{};  // [n] i64 in that order; undefined: they are not needed
  at::Tensor
      positions{};  // [count or more] i64 in that order; undefined: `first` and the following
  std::int64_t first = 0;
  std::int64_t advance = 0;  // is added to all of `positions` once they have been read
};

/// A batch that a kernel made.
struct MadeBatch {
  at::Tensor images;
  at::Tensor labels;          // [count] i64
  at::Tensor seeds{};         // [count] i64, where they are needed
  at::Tensor other_labels{};  // [count] i64, where samples are mixed
  at::Tensor weights{};       // [count] f32, where samples are mixed
};

/// Returns the samples with their images as they are stored, [count, ...]. See gpu/gather_batch.cu.
MadeBatch gather_rows(const BatchSamples& samples);

/// What a step of a PixelMap does; the values are those of gpu/gather_batch.cu.
enum class PixelStep : int { kCrop, kFlip, kCutout };

/// Where each pixel of an augmented and normalised image comes from.
struct PixelMap {
  at::Tensor steps{};              // [steps,5] i32, see gpu/gather_batch.cu; undefined: none
  std::int64_t stored_height = 0;  // of the bytes
  std::int64_t stored_width = 0;
  std::int64_t height = 0;  // of the images that come out
  std::int64_t width = 0;
  std::int64_t mixed_before = -1;      // the step before which samples are mixed; -1: they are not
  bool mixes_bytes = false;            // else normalised values
  std::int64_t weight_column = 0;      // of `drawn`, by which samples are mixed
  std::int64_t normalized_before = 0;  // the step before which bytes are normalised
  at::Tensor tables{};                 // [1 or channels,256] f32: what bytes are normalised to
  at::Tensor drawn{};                  // [n, columns] f32 in the samples' order; undefined: none
};

/// Returns the samples with their images augmented, normalised and mixed, each with the one behind
/// it, of which `samples.positions` then has one more. The samples' rows are bytes [channels,
/// stored_height, stored_width], and images are [count, channels, height, width] of `type`, f32 or
/// bf16, with channels_last strides.
MadeBatch gather_pixels(const BatchSamples& samples, const PixelMap& map, at::ScalarType type);

/// Computes a small known case by the kernels on the device and by LibTorch on the host. Returns
/// what differs; nothing where they agree.
std::string check_gather_batch(at::Device device);

}  // namespace mnist_train::kernels
