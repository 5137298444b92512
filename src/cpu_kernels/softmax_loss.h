#pragma once

#include <cstdint>

#include "cpu_kernels/batch_norm.h"

namespace mnist_train::cpu_kernels {

/// Sums over the images of a batch.
struct LossSums {
  double loss = 0;
  std::int64_t correct = 0;
};

/// Returns the sum of softmax cross-entropy losses of logits [classes,1,1], each times the weight
/// of its label's class (null: 1), and writes `factor` times their gradient. `labels` has one label
/// per image. Images of the last block that are no samples have gradient 0.
template <class Element>
LossSums softmax_loss(const Batch& batch, std::int64_t classes, const Element* logits,
                      const std::int64_t* labels, const float* class_weights, double factor,
                      Element* gradient);

}  // namespace mnist_train::cpu_kernels
