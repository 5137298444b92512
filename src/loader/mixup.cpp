#include "loader/mixup.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/ones_like.h>

#include <algorithm>

namespace mnist_train::loader {

at::Tensor mix(const at::Tensor& images, const at::Tensor& partners, const at::Tensor& weights) {
  const at::Tensor mine = weights.view({-1, 1, 1, 1});
  at::Tensor mixed = mine * images + (1 - mine) * partners;  // separate kernels: no FMA
  if (images.scalar_type() != at::kByte) return mixed;
  return mixed.clamp(0, 255).to(at::kByte);
}

Mixed mix_with_following(const at::Tensor& images, const at::Tensor& labels,
                         const at::Tensor& weights) {
  const std::int64_t count = weights.size(0);
  return {mix(images.narrow(0, 0, count), images.narrow(0, 1, count), weights),
          labels.narrow(0, 0, count), labels.narrow(0, 1, count), weights};
}

Mixed mix_with_next_process(const at::Tensor& images, const at::Tensor& labels,
                            const at::Tensor& weights, std::int64_t next_count,
                            const FromNext& from_next) {
  const std::int64_t count = images.size(0);
  const std::int64_t pairs = std::min(count, next_count);
  if (!from_next) return {images, labels, labels, at::ones_like(weights)};
  const at::Tensor partners = from_next(images, next_count).narrow(0, 0, pairs);
  const at::Tensor partners_labels = from_next(labels, next_count).narrow(0, 0, pairs);
  const auto with_rest = [&](const at::Tensor& paired, const at::Tensor& alone) {
    return pairs == count ? paired : at::cat({paired, alone.narrow(0, pairs, count - pairs)});
  };
  const at::Tensor paired_weights = weights.narrow(0, 0, pairs);
  return {with_rest(mix(images.narrow(0, 0, pairs), partners, paired_weights), images), labels,
          with_rest(partners_labels, labels), with_rest(paired_weights, at::ones_like(weights))};
}

}  // namespace mnist_train::loader
