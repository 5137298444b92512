#include "train/flat_parameters.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/_foreach_add.h>
#include <ATen/ops/_foreach_copy.h>
#include <ATen/ops/as_strided.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <utility>

namespace mnist_train::train {

namespace {

std::vector<std::int64_t> dense_strides(at::IntArrayRef sizes) {
  if (sizes.size() == 4) {
    // [out, in, height, width] -> channels_last, also with one input channel.
    const std::int64_t in = sizes[1];
    const std::int64_t width = sizes[3];
    return {in * sizes[2] * width, 1, width * in, in};
  }
  std::vector<std::int64_t> strides(sizes.size(), 1);
  for (std::size_t i = sizes.size(); i-- > 1;) strides[i - 1] = strides[i] * sizes[i];
  return strides;
}

}  // namespace

FlatParameters::FlatParameters(torch::nn::Module& module, std::int64_t riders,
                               torch::nn::Module* bf16_copy)
    : parameters_(bf16_copy != nullptr ? bf16_copy->parameters() : module.parameters()) {
  const c10::NoGradGuard no_grad;
  std::int64_t bf16_total = 0;
  const std::int64_t total = lay_out(bf16_total);
  const at::TensorOptions options = module.parameters().front().options().requires_grad(false);
  values_ = at::empty({total}, options);
  gradients_and_riders_ = at::zeros({total + riders}, options);
  gradients_ = gradients_and_riders_.narrow(0, 0, total);
  riders_ = gradients_and_riders_.narrow(0, total, riders);
  bf16_values_ = at::empty({bf16_total}, options.dtype(at::kBFloat16));
  std::vector<at::Tensor> masters = module.parameters();
  for (std::size_t i = 0; i < masters.size(); ++i) {
    const at::Tensor place = view(values_, layouts_[i]);
    place.copy_(masters[i]);
    masters[i].set_data(place);
    const bool computes = bf16_copy == nullptr || parameters_[i].scalar_type() == at::kFloat;
    parameters_[i].set_data(computes ? place : view(bf16_values_, layouts_[i]));
    places_.push_back(view(gradients_, layouts_[i]));
  }
  if (bf16_copy == nullptr) return;
  std::vector<at::Tensor> buffers = bf16_copy->buffers();
  const std::vector<at::Tensor> masters_buffers = module.buffers();
  for (std::size_t i = 0; i < buffers.size(); ++i) buffers[i].set_data(masters_buffers[i]);
  refresh_bf16_copy({0, total});
}

/// Parameters in bf16 first. Gives the number of elements, and of those in bf16.
std::int64_t FlatParameters::lay_out(std::int64_t& bf16_total) {
  layouts_.resize(parameters_.size());
  std::int64_t total = 0;
  for (const bool bf16_copy : {true, false}) {
    for (std::size_t i = 0; i < parameters_.size(); ++i) {
      if ((parameters_[i].scalar_type() == at::kBFloat16) != bf16_copy) continue;
      layouts_[i] = {total, parameters_[i].sizes().vec(), dense_strides(parameters_[i].sizes())};
      total += parameters_[i].numel();
    }
    if (bf16_copy) bf16_total = total;
  }
  return total;
}

void FlatParameters::clear() const {
  for (const at::Tensor& parameter : parameters_) parameter.mutable_grad().reset();
  riders_.zero_();
}

void FlatParameters::refresh_bf16_copy(comm::Shard part) const {
  const c10::NoGradGuard no_grad;
  part.size = std::min(part.size, bf16_values_.numel() - part.begin);
  if (part.size <= 0) return;
  part.of(bf16_values_).copy_(part.of(values_));
}

void FlatParameters::collect_gradients(bool add) const {
  const c10::NoGradGuard no_grad;
  std::vector<at::Tensor> gradients;
  gradients.reserve(parameters_.size());
  for (const at::Tensor& parameter : parameters_) {
    gradients.push_back(std::move(parameter.mutable_grad()));
  }
  if (add) {
    at::_foreach_add_(places_, gradients);
  } else {
    at::_foreach_copy_(places_, gradients);
  }
}

at::Tensor FlatParameters::view(const at::Tensor& flat, const Layout& layout) {
  return at::as_strided(flat, layout.sizes, layout.strides, flat.storage_offset() + layout.offset);
}

at::Tensor FlatParameters::view_like_parameter(const at::Tensor& flat, std::size_t index) const {
  return view(flat, layouts_[index]);
}

}  // namespace mnist_train::train
