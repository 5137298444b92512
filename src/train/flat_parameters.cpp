#include "train/flat_parameters.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/as_strided.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

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

FlatParameters::FlatParameters(torch::nn::Module& module, std::int64_t riders)
    : parameters_(module.parameters()) {
  const c10::NoGradGuard no_grad;
  std::int64_t total = 0;
  for (const at::Tensor& parameter : parameters_) {
    layouts_.push_back({total, parameter.sizes().vec(), dense_strides(parameter.sizes())});
    total += parameter.numel();
  }
  const at::TensorOptions options = parameters_.front().options().requires_grad(false);
  values_ = at::empty({total}, options);
  gradients_and_riders_ = at::zeros({total + riders}, options);
  gradients_ = gradients_and_riders_.narrow(0, 0, total);
  riders_ = gradients_and_riders_.narrow(0, total, riders);
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    const at::Tensor place = view(values_, layouts_[i]);
    place.copy_(parameters_[i]);
    parameters_[i].set_data(place);
    parameters_[i].mutable_grad() = view(gradients_, layouts_[i]);
  }
}

at::Tensor FlatParameters::view(const at::Tensor& flat, const Layout& layout) {
  return at::as_strided(flat, layout.sizes, layout.strides, flat.storage_offset() + layout.offset);
}

at::Tensor FlatParameters::view_like_parameter(const at::Tensor& flat, std::size_t index) const {
  return view(flat, layouts_[index]);
}

}  // namespace mnist_train::train
