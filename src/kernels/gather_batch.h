#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace mnist_train::kernels {

/// The samples of a batch. All tensors are contiguous and on one GPU.
struct BatchSamples {
  std::int64_t count;  // of the batch
  at::Tensor rows;     // [samples, ...]: images of any type
  at::Tensor labels;   // [samples] i64
  at::Tensor order{};  // [n] i64 of samples; undefined: the stored order
  at::Tensor seeds{};  // [n] i64 in that order; undefined: not needed
  // [count or more] i64 in that order; undefined: consecutive ones from `first` on
  at::Tensor positions{};
  std::int64_t first = 0;
  std::int64_t advance = 0;  // added to all of `positions` after reading them
};

/// A gathered batch.
struct MadeBatch {
  at::Tensor images;
  at::Tensor labels;          // [count] i64
  at::Tensor seeds{};         // [count] i64, if needed
  at::Tensor other_labels{};  // [count] i64, if samples are mixed
  at::Tensor weights{};       // [count] f32, if samples are mixed
};

/// Returns the samples with their images as stored, [count, ...]. See gpu/gather_batch.cu.
MadeBatch gather_rows(const BatchSamples& samples);

/// Kinds of steps of a PixelMap, with the values of gpu/gather_batch.cu.
enum class PixelStep : int { kCrop, kFlip, kCutout };

/// Maps pixels of augmented and normalised images to stored pixels.
struct PixelMap {
  at::Tensor steps{};              // [steps,5] i32, see gpu/gather_batch.cu; undefined: none
  std::int64_t stored_height = 0;  // of the bytes
  std::int64_t stored_width = 0;
  std::int64_t height = 0;  // of the output
  std::int64_t width = 0;
  std::int64_t mixed_before = -1;      // the step before which samples are mixed; -1: never
  bool mixes_bytes = false;            // instead of normalised values
  std::int64_t weight_column = 0;      // column of `drawn` with the weights of mixup
  std::int64_t normalized_before = 0;  // the step before which bytes are normalised
  at::Tensor tables{};                 // [1 or channels,256] f32: normalised value of each byte
  at::Tensor drawn{};                  // [n, columns] f32 in the samples' order; undefined: none
};

/// Returns the samples with their images augmented, normalised and mixed, each with the next one;
/// `samples.positions` then has one more. Rows are bytes [channels, stored_height, stored_width];
/// images are [count, channels, height, width] of `type`, f32 or bf16, with channels_last strides.
MadeBatch gather_pixels(const BatchSamples& samples, const PixelMap& map, at::ScalarType type);

}  // namespace mnist_train::kernels
