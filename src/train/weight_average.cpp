#include "train/weight_average.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/_foreach_copy.h>
#include <ATen/ops/_foreach_lerp.h>
#include <ATen/ops/empty_like.h>

#include <utility>

namespace mnist_train::train {

WeightAverage::WeightAverage(double decay, models::Model& model, const FlatParameters& parameters,
                             std::shared_ptr<models::Model> average)
    : weight_(1 - decay),
      parameters_(parameters),
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

void WeightAverage::update(comm::Shard shard) {
  const at::NoGradGuard no_grad;
  shard.of(values_).lerp_(shard.of(parameters_.values()), weight_);
  update_buffers();
}

void WeightAverage::update_buffers() {
  const at::NoGradGuard no_grad;
  if (!averaged_.sources.empty()) {
    at::_foreach_lerp_(averaged_.averages, averaged_.sources, weight_);
  }
  if (!copied_.sources.empty()) at::_foreach_copy_(copied_.averages, copied_.sources);
}

}  // namespace mnist_train::train
