#include "train/shard_buffers.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/_foreach_copy.h>
#include <ATen/ops/_foreach_sub.h>

#include <algorithm>

namespace mnist_train::train {

namespace {

/// Returns `flat` as tensors that are like the buffers, one behind the other.
std::vector<at::Tensor> views_like(const std::vector<at::Tensor>& buffers, const at::Tensor& flat) {
  std::vector<at::Tensor> views;
  std::int64_t begin = 0;
  for (const at::Tensor& buffer : buffers) {
    views.push_back(flat.narrow(0, begin, buffer.numel()).view(buffer.sizes()));
    begin += buffer.numel();
  }
  return views;
}

}  // namespace

std::int64_t ShardBuffers::elements(const torch::nn::Module& model) {
  std::int64_t count = 0;
  for (const at::Tensor& buffer : model.buffers()) count += buffer.numel();
  return count;
}

ShardBuffers::ShardBuffers(const torch::nn::Module& model) : buffers_(model.buffers()) {
  std::stable_partition(buffers_.begin(), buffers_.end(),
                        [](const at::Tensor& buffer) { return buffer.is_floating_point(); });
  for (const at::Tensor& buffer : buffers_) {
    kept_.push_back(buffer.clone());
    if (buffer.is_floating_point()) floating_elements_ += buffer.numel();
  }
}

void ShardBuffers::begin_step() {
  const at::NoGradGuard no_grad;
  if (!buffers_.empty()) at::_foreach_copy_(kept_, buffers_);
}

void ShardBuffers::begin_shard() {
  const at::NoGradGuard no_grad;
  if (!buffers_.empty()) at::_foreach_copy_(buffers_, kept_);
}

void ShardBuffers::end_shard(const at::Tensor& changes, double fraction, bool is_first) const {
  if (buffers_.empty()) return;
  const at::NoGradGuard no_grad;
  at::_foreach_copy_(views_like(buffers_, changes), at::_foreach_sub(buffers_, kept_));
  changes.narrow(0, 0, floating_elements_).mul_(fraction);
  const std::int64_t rest = changes.numel() - floating_elements_;
  if (!is_first) changes.narrow(0, floating_elements_, rest).zero_();
}

void ShardBuffers::end_step(const at::Tensor& changes) {
  if (buffers_.empty()) return;
  const at::NoGradGuard no_grad;
  begin_shard();
  const std::vector<at::Tensor> summed = views_like(buffers_, changes);
  for (std::size_t i = 0; i < buffers_.size(); ++i) {
    buffers_[i].add_(summed[i].to(buffers_[i].scalar_type()));
  }
}

}  // namespace mnist_train::train
