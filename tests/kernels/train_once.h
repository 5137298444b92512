#pragma once

#include <ATen/core/grad_mode.h>
#include <ATen/ops/randn.h>
#include <torch/utils.h>

#include <string>
#include <vector>

#include "kernels/agreement.h"
#include "models/model.h"
#include "support/catch.h"

namespace mnist_train {

/// The results of one training step.
struct TrainedOnce {
  at::Tensor scores;
  std::vector<at::Tensor> tensors;  // the scores, then the parameters' gradients
};

/// Takes a training step with a ten-class network on random images of shape `sizes` [N,C,H,W].
inline TrainedOnce train_once(const settings::LayerList& layers, at::IntArrayRef sizes,
                              at::ScalarType type) {
  settings::ModelOptions options;
  options.layers = layers;
  const auto model = models::make_model(options, {sizes[1], sizes[2], sizes[3], 10}, /*seed=*/3);
  if (type == at::kBFloat16) model->compute_in_bfloat16();
  torch::manual_seed(5);
  const at::Tensor images = at::randn(sizes).to(type).contiguous(at::MemoryFormat::ChannelsLast);
  TrainedOnce trained{model->forward(images), {}};
  (trained.scores * at::randn({sizes[0], 10})).sum().backward();
  trained.tensors.push_back(trained.scores.detach());
  for (const at::Tensor& parameter : model->parameters()) {
    trained.tensors.push_back(parameter.grad());
  }
  return trained;
}

/// Checks that tensors agree up to the rounding of `type`.
inline void check_agreement(const std::vector<at::Tensor>& found,
                            const std::vector<at::Tensor>& expected, at::ScalarType type) {
  REQUIRE(found.size() == expected.size());
  const at::NoGradGuard no_grad;
  Agreement agreement;
  for (std::size_t i = 0; i < found.size(); ++i) {
    agreement.add(("tensor " + std::to_string(i)).c_str(), found[i], expected[i], type);
  }
  CHECK(agreement.difference() == "");
}

}  // namespace mnist_train
