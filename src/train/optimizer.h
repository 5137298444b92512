#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "comm/gradient_averager.h"
#include "kernels/optimizer_update.h"
#include "settings/train_options.h"
#include "train/flat_parameters.h"
#include "train/weight_average.h"

namespace mnist_train::train {

/// A tensor of the optimizer's state, laid out like `FlatParameters::values`, under PyTorch's name
/// for it.
struct OptimizerTensor {
  std::string name;  // "momentum_buffer"
  at::Tensor flat;   // [n] f32
};

/// The numbers of a step that differ from those of the step before it.
struct StepRates {
  double learning_rate = 0;
  double average_weight = 0;  // see `average_weight`; ignored without an EMA model

  bool operator==(const StepRates&) const = default;
};

/// Updates a slice of the weights by their gradients, with the optimizer's state, the bf16 copy and
/// the EMA model. On CPUs one pass over memory also sums the gradients (`update_on_host`); on GPUs
/// it is one kernel of ours, or LibTorch's fused one and what follows it.
class Optimizer {
 public:
  virtual ~Optimizer() = default;

  /// Returns whether `update` needs the gradients added up; else it adds them up itself.
  bool takes_sums() const;
  /// Returns whether `update` clips, and so needs whole gradients on every rank.
  bool clips() const { return max_gradient_norm_.has_value(); }
  /// Takes one step. `rates`: [2] on the parameters' device, the members of StepRates in their
  /// order, f32 or, on CPUs, f64. Returns whether the update is finite, on a CPU; a GPU adds 0 or
  /// NaN to `check`, since nothing here waits for it.
  bool update(comm::GradientAverager& averager, const at::Tensor& rates, const at::Tensor& check);

  /// Takes one step by LibTorch's fused kernel, of the weights and state alone.
  virtual void step(const at::Tensor& learning_rate) = 0;
  /// Returns how kernels of our own take the same step: of the same elements, with the same state.
  virtual kernels::UpdateRule rule() const = 0;
  /// Returns the optimizer's name in the config.
  virtual const char* name() const = 0;
  /// Returns what a checkpoint must hold beside the weights.
  virtual std::vector<OptimizerTensor> state() const = 0;
  /// Tells the optimizer that `state` now holds what `steps` earlier steps left there.
  virtual void restored(std::int64_t /*steps*/) {}

 protected:
  Optimizer(const settings::TrainOptions& options, const FlatParameters& parameters,
            comm::Slice slice, WeightAverage* average)
      : max_gradient_norm_(options.max_gradient_norm),
        parameters_(parameters),
        slice_(slice),
        average_(average) {}

 private:
  bool has_gpu_kernel() const;
  kernels::WeightUpdate weight_update(const at::Tensor& rates) const;
  void update_by_kernel(kernels::WeightUpdate update, const at::Tensor& check);
  void update_by_libtorch(const at::Tensor& rates, const at::Tensor& check);
  bool clip_gradients(const at::Tensor& check);

  std::optional<double> max_gradient_norm_;
  const FlatParameters& parameters_;
  comm::Slice slice_;
  WeightAverage* average_;  // null without `ema`
};

/// Makes the optimizer that the options name, with PyTorch's meaning of every hyperparameter. It
/// updates the elements in `slice`, or all elements if no slice is given, and has state for all of
/// them. `average` follows the weights, unless it is null; it must outlive the optimizer, as must
/// `parameters`.
std::unique_ptr<Optimizer> make_optimizer(const settings::TrainOptions& options,
                                          const FlatParameters& parameters,
                                          std::optional<comm::Slice> slice = {},
                                          WeightAverage* average = nullptr);

}  // namespace mnist_train::train
