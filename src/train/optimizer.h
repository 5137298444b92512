#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "comm/gradient_averager.h"
#include "kernels/operations.h"
#include "models/model.h"
#include "settings/train_options.h"
#include "train/flat_parameters.h"

namespace mnist_train::train {

/// Returns the interpolation factor of the EMA update after `step` steps (at least 1) of the run:
/// 1 - min(decay, (1 + step) / (10 + step)), like TensorFlow's ExponentialMovingAverage with
/// `num_updates`. Without this warm-up, initial weights would dominate the EMA of a short run.
double average_weight(double decay, std::int64_t step);

/// The exponential moving average (EMA) of a model: each optimizer step moves every averaged weight
/// towards the trained one by a fraction `average_weight` of their difference. Floating-point
/// buffers, such as running means, are averaged too; other buffers are copied.
class EmaModel {
 public:
  /// Averages `model`, whose parameters are stored in `parameters`, which must outlive this object.
  /// `average` is a model of the same architecture on the same device; its trained parameters
  /// become views of `values`, and it shares the frozen ones.
  EmaModel(models::Model& model, const FlatParameters& parameters,
           std::shared_ptr<models::Model> average);

  /// Sets the average to the model's current weights and buffers.
  void restart();
  /// Updates the buffers; the optimizer updates the weights. `weight`: see `average_weight`; a
  /// device scalar, fp32 or, on CPUs, fp64. Never waits for the GPU, so a graph can capture it.
  void update_buffers(const at::Tensor& weight);

  const at::Tensor& values() const { return values_; }  // [n] f32, like FlatParameters::values
  models::Model& model() { return *model_; }

 private:
  /// Buffers of the EMA model and the trained model.
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

/// A tensor of the optimizer state, with the layout of `FlatParameters::values` and PyTorch's name.
struct OptimizerTensor {
  std::string name;  // "momentum_buffer"
  at::Tensor flat;   // [n] f32
};

/// The values that change from step to step.
struct StepRates {
  double learning_rate = 0;
  double average_weight = 0;  // see `average_weight`; ignored without an EMA model
  double loss_factor = 1;     // see ClassWeights::factor

  bool operator==(const StepRates&) const = default;
};

/// Updates a slice of the weights from their gradients, along with the optimizer state, the bf16
/// copy and the EMA model. On CPUs, the same pass over memory also sums the gradients
/// (`update_on_host`); on GPUs the update is one custom kernel, or LibTorch's fused kernel and a
/// few more. Every hyperparameter has the same meaning as in PyTorch; each optimizer is a rule
/// (`kernels::UpdateRule`).
class Optimizer {
 public:
  /// Updates the elements in `slice`, by default all; state tensors cover all elements. `ema`, if
  /// not null, is updated too. It and `parameters` must outlive the optimizer.
  Optimizer(const settings::TrainOptions& options, const FlatParameters& parameters,
            std::optional<comm::Slice> slice = {}, EmaModel* ema = nullptr);

  /// Returns whether `update` needs complete sums of gradients; otherwise it computes them itself.
  bool needs_sums() const { return clips() || !updates_on_host(); }
  /// Returns whether `update` clips, which needs the full gradients on every rank.
  bool clips() const { return options_.max_gradient_norm.has_value(); }
  /// Takes one step. `rates`: the first two or all members of StepRates, on the parameters' device,
  /// fp32 or, on CPUs, fp64. On a CPU, returns whether the update is finite. On a GPU, always
  /// returns true without waiting, but sets `check` to NaN if the update is not finite.
  bool update(comm::GradientAverager& averager, const at::Tensor& rates, const at::Tensor& check);
  /// Returns the rule of the first span of the slice.
  const kernels::UpdateRule& rule() const { return spans_.front().rule; }
  /// Returns the optimizer's name as in the config.
  const char* name() const;
  /// Returns the tensors that a checkpoint must contain besides the weights.
  const std::vector<OptimizerTensor>& state() const { return state_; }
  /// Notifies the optimizer that `state` was restored to its values after `steps` steps.
  void restored(std::int64_t steps);

 private:
  /// Consecutive weights of the slice that share their update settings.
  struct UpdateSpan {
    comm::Slice slice;  // of all values
    double learning_rate_factor;
    kernels::WeightUpdate update;  // the tensors; `Optimizer::update` adds the rates
    kernels::UpdateRule rule;
  };

  kernels::UpdateRule make_rule(comm::Slice slice, double weight_decay) const;
  bool updates_on_host() const {
    const at::Device device = parameters_.values().device();
    return device.is_cpu() && !kernels::are_used(device);
  }
  bool clip_gradients(const at::Tensor& check);

  settings::TrainOptions options_;
  const FlatParameters& parameters_;
  comm::Slice slice_;
  EmaModel* ema_;  // null without `ema`
  std::vector<OptimizerTensor> state_;
  std::vector<UpdateSpan> spans_;
};

/// Takes an optimizer step on a CPU in one pass over memory: sums `gradients` and updates weights,
/// optimizer state, bf16 copy and EMA model. Ignores `update.gradients`; the first weight's
/// gradient is element `first` of `gradients`. Results are bit-identical on all CPUs for all thread
/// counts.
///
/// Returns whether the new weights are finite, which implies finite gradients; weights are checked
/// while they are in the cache.
[[nodiscard]] bool update_on_host(const kernels::WeightUpdate& update,
                                  const kernels::UpdateRule& rule,
                                  const comm::DeferredSum& gradients, std::int64_t first = 0);

}  // namespace mnist_train::train
