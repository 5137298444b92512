#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>

namespace mnist_train::loader {

/// A collective that sends `mine` to the previous process and returns what the next one, rank + 1
/// modulo their number, sends: `count` rows of the same shape.
using FromNext = std::function<at::Tensor(const at::Tensor& mine, std::int64_t count)>;

/// Images with two labels each.
struct Mixed {
  at::Tensor images;        // [n,C,H,W]
  at::Tensor labels;        // [n] i64
  at::Tensor other_labels;  // [n] i64, of the partners
  at::Tensor weights;       // [n] f32, of the samples themselves
};

/// Computes weight * image + (1 - weight) * partner in fp32, each product and the sum rounded by
/// itself. Bytes are clipped to 0–255 and truncated to whole numbers.
at::Tensor mix(const at::Tensor& images, const at::Tensor& partners, const at::Tensor& weights);

/// Mixes each sample with the one after it, so n + 1 images and labels make n. `weights` is [n]
/// f32.
Mixed mix_with_following(const at::Tensor& images, const at::Tensor& labels,
                         const at::Tensor& weights);

/// Mixes sample i with sample i of the next process, which has `next_count` of them; a sample
/// without a partner stays what it is, and so do all in a world of one, where there is no
/// `from_next`. All processes must call it.
Mixed mix_with_next_process(const at::Tensor& images, const at::Tensor& labels,
                            const at::Tensor& weights, std::int64_t next_count,
                            const FromNext& from_next);

}  // namespace mnist_train::loader
