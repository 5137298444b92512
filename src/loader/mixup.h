#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>

namespace mnist_train::loader {

/// Collective: sends `mine` to the previous process and gives what the next one, rank + 1 modulo
/// their number, sends: `count` rows of the same shape.
using FromNext = std::function<at::Tensor(const at::Tensor& mine, std::int64_t count)>;

/// Images with two labels each.
struct Mixed {
  at::Tensor images;        // [n,C,H,W]
  at::Tensor labels;        // [n] i64
  at::Tensor other_labels;  // [n] i64, of the partners
  at::Tensor weights;       // [n] f32, of the samples themselves
};

/// weight * image + (1 - weight) * partner, in fp32, each product and the sum rounded by itself.
/// Bytes are clipped to 0–255 and truncated to whole numbers.
at::Tensor mix(const at::Tensor& images, const at::Tensor& partners, const at::Tensor& weights);

/// Each sample with the one after it: n + 1 images and labels make n. `weights` [n] f32.
Mixed mix_with_following(const at::Tensor& images, const at::Tensor& labels,
                         const at::Tensor& weights);

/// Collective: sample i with sample i of the next process, of which there are `next_count`; a
/// sample without a partner stays what it is, and so do all without `from_next`, in a world of one.
Mixed mix_with_next_process(const at::Tensor& images, const at::Tensor& labels,
                            const at::Tensor& weights, std::int64_t next_count,
                            const FromNext& from_next);

}  // namespace mnist_train::loader
