#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "train/trainer.h"

namespace mnist_train::checkpoint {

/// The tensors that make up the state of training, beside `Progress`. They share the trainer's
/// memory.
struct StateTensors {
  std::vector<at::Tensor> flat;     // [n] weights, optimizer state, average: equal on all ranks
  std::vector<at::Tensor> buffers;  // of which rank 0's count
};

/// Returns the tensors of the trainer's state, in the same order for trainers of the same options.
StateTensors state_tensors(const train::Trainer& trainer);

}  // namespace mnist_train::checkpoint
