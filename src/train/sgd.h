#pragma once

#include "train/optimizer.h"

namespace mnist_train::train {

/// torch.optim.SGD with momentum, Nesterov and weight decay (dampening 0), through ATen's fused
/// kernel.
class Sgd : public Optimizer {
 public:
  Sgd(const settings::TrainOptions& options, const FlatParameters& parameters, comm::Shard part);

  void step(const at::Tensor& learning_rate) override;
  const char* name() const override { return "sgd"; }
  std::vector<OptimizerTensor> state() const override;

 private:
  double momentum_;
  double weight_decay_;
  bool nesterov_;
  at::Tensor momentum_buffer_;  // undefined without momentum
  // Of the part that is updated.
  std::vector<at::Tensor> values_;
  std::vector<at::Tensor> gradients_;
  std::vector<at::Tensor> momentum_buffers_;
};

}  // namespace mnist_train::train
