#include "train/weight_average.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/_foreach_add.h>
#include <ATen/ops/_foreach_copy.h>
#include <ATen/ops/_foreach_mul.h>
#include <ATen/ops/_foreach_sub.h>
#include <ATen/ops/empty_like.h>

#include <algorithm>
#include <utility>

namespace mnist_train::train {

double average_weight(double decay, std::int64_t step) {
  return std::max(1 - decay, 9 / (10 + static_cast<double>(step)));
}

WeightAverage::WeightAverage(models::Model& model, const FlatParameters& parameters,
                             std::shared_ptr<models::Model> average)
    : parameters_(parameters),
      model_(std::move(average)),
      values_(at::empty_like(parameters.values())) {
  const at::NoGradGuard no_grad;
  std::vector<at::Tensor> views = model_->parameters();
  for (std::size_t i = 0; i < views.size(); ++i) {
    views[i].set_data(parameters.view_like_parameter(values_, i));
  }
  const std::vector<at::Tensor> sources = model.buffers();
  const std::vector<at::Tensor> averages = model_->buffers();
  for (std::size_t i = 0; i < sources.size(); ++i) {
    Buffers& buffers = sources[i].is_floating_point() ? averaged_ : copied_;
    buffers.sources.push_back(sources[i]);
    buffers.averages.push_back(averages[i]);
  }
  restart();
}

void WeightAverage::restart() {
  const at::NoGradGuard no_grad;
  values_.copy_(parameters_.values());
  for (Buffers* buffers : {&averaged_, &copied_}) {
    if (!buffers->sources.empty()) at::_foreach_copy_(buffers->averages, buffers->sources);
  }
}

void WeightAverage::update(comm::Slice slice, const at::Tensor& weight) {
  const at::NoGradGuard no_grad;
  slice.of(values_).lerp_(slice.of(parameters_.values()), weight.to(values_.scalar_type()));
  update_buffers(weight);
}

void WeightAverage::update_buffers(const at::Tensor& weight) {
  const at::NoGradGuard no_grad;
  if (!averaged_.sources.empty()) {
    // at::_foreach_lerp_ takes no scalar that is on the device.
    const std::vector<at::Tensor> moves = at::_foreach_sub(averaged_.sources, averaged_.averages);
    at::_foreach_mul_(moves, weight.to(values_.scalar_type()));
    at::_foreach_add_(averaged_.averages, moves);
  }
  if (!copied_.sources.empty()) at::_foreach_copy_(copied_.averages, copied_.sources);
}

}  // namespace mnist_train::train
