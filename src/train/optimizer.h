#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "comm/gradient_averager.h"
#include "kernels/optimizer_update.h"
#include "settings/train_options.h"
#include "train/flat_parameters.h"

namespace mnist_train::train {

/// A tensor of the optimizer's state, laid out like `FlatParameters::values`, under PyTorch's name
/// for it.
struct OptimizerTensor {
  std::string name;  // "momentum_buffer"
  at::Tensor flat;   // [n] f32
};

/// Updates parameters from their gradients, in one kernel.
class Optimizer {
 public:
  virtual ~Optimizer() = default;

  /// Takes one step. `learning_rate`: a scalar on the parameters' device, f32 or, on CPUs, f64.
  virtual void step(const at::Tensor& learning_rate) = 0;
  /// Returns how kernels of our own take the same step: of the same elements, with the same state.
  virtual kernels::UpdateRule rule() const = 0;
  /// Returns the optimizer's name in the config.
  virtual const char* name() const = 0;
  /// Returns what a checkpoint must hold beside the weights.
  virtual std::vector<OptimizerTensor> state() const = 0;
  /// Tells the optimizer that `state` now holds what `steps` earlier steps left there.
  virtual void restored(std::int64_t /*steps*/) {}
};

/// Makes the optimizer that the options name, with PyTorch's meaning of every hyperparameter. It
/// updates the elements in `slice`, or all elements where no slice is given, and has state for all
/// of them.
std::unique_ptr<Optimizer> make_optimizer(const settings::TrainOptions& options,
                                          const FlatParameters& parameters,
                                          std::optional<comm::Slice> slice = {});

}  // namespace mnist_train::train
