#pragma once

#include "train/optimizer.h"

namespace mnist_train::train {

/// torch.optim.Adam and AdamW (no amsgrad), through ATen's fused kernels. AdamW decouples the
/// weight decay.
class Adam : public Optimizer {
 public:
  Adam(const settings::TrainOptions& options, const FlatParameters& parameters, comm::Shard part);

  void step(const at::Tensor& learning_rate) override;
  const char* name() const override { return decoupled_ ? "adamw" : "adam"; }
  std::vector<OptimizerTensor> state() const override;
  void restored(std::int64_t steps) override;

 private:
  bool decoupled_;  // AdamW
  double beta1_;
  double beta2_;
  double epsilon_;
  double weight_decay_;
  at::Tensor average_;         // exp_avg
  at::Tensor square_average_;  // exp_avg_sq
  // Of the part that is updated.
  std::vector<at::Tensor> values_;
  std::vector<at::Tensor> gradients_;
  std::vector<at::Tensor> averages_;
  std::vector<at::Tensor> square_averages_;
  std::vector<at::Tensor> steps_;  // one scalar f32, on the device
};

}  // namespace mnist_train::train
