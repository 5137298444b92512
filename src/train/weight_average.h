#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "comm/gradient_averager.h"
#include "models/model.h"
#include "train/flat_parameters.h"

namespace mnist_train::train {

/// Returns by what fraction of their distance the average moves towards the weights after step
/// number `step` (from 1) of the run: 1 - min(decay, (1 + step) / (10 + step)), as TensorFlow's
/// ExponentialMovingAverage does with `num_updates`. Without that warm-up the average of a short
/// run would consist of its initial weights.
double average_weight(double decay, std::int64_t step);

/// An exponential moving average of a model's weights (EMA): after each optimizer step every
/// element moves towards the weights by `average_weight` of the distance. Buffers that are
/// floating-point, such as running means, are averaged, too; others are copied.
class WeightAverage {
 public:
  /// `model` is what is averaged; its parameters are those of `parameters`, which must outlive the
  /// average. `average` is a model of the same kind on the same device, whose parameters become
  /// views of `values`.
  WeightAverage(models::Model& model, const FlatParameters& parameters,
                std::shared_ptr<models::Model> average);

  /// Sets the average to the model's weights and buffers of this moment.
  void restart();
  /// Takes the step of the weights in `slice`, which this rank updates for all ranks, and of the
  /// buffers. `weight`: see `average_weight`; a scalar on the device, f32 or, on CPUs, f64. It
  /// never waits for a GPU, so that a graph can capture it.
  void update(comm::Slice slice, const at::Tensor& weight);
  /// Takes the step of the buffers alone, where a kernel takes that of the weights.
  void update_buffers(const at::Tensor& weight);

  const at::Tensor& values() const { return values_; }  // [n] f32, like FlatParameters::values
  models::Model& model() { return *model_; }
  const models::Model& model() const { return *model_; }

 private:
  /// Buffers of the average, and those that they follow.
  struct Buffers {
    std::vector<at::Tensor> averages;
    std::vector<at::Tensor> sources;
  };

  const FlatParameters& parameters_;
  std::shared_ptr<models::Model> model_;
  at::Tensor values_;
  Buffers averaged_;  // floating-point
  Buffers copied_;
};

}  // namespace mnist_train::train
