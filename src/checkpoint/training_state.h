#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "base/json.h"
#include "comm/communicator.h"
#include "train/trainer.h"

namespace mnist_train::checkpoint {

/// The tensors of a training state, of which `Progress` is the rest. They share the trainer's
/// memory.
struct StateTensors {
  std::vector<at::Tensor> flat;     // [n] weights, optimizer state, EMA weights; equal on all ranks
  std::vector<at::Tensor> buffers;  // rank 0's count
};

/// Returns the tensors of the trainer's state, in the same order for trainers of the same options.
StateTensors state_tensors(const train::Trainer& trainer);

/// Returns progress as JSON, from which `progress_from_json` restores every bit.
OrderedJson progress_to_json(const train::Progress& progress);
/// Throws Error(kCheckpoint) for JSON that `progress_to_json` does not return.
train::Progress progress_from_json(const OrderedJson& json);

/// Gives the trainers of all ranks the training state of rank 0's, so that only rank 0 needs to
/// read a checkpoint. Collective.
void broadcast_state(train::Trainer& trainer, comm::Communicator& communicator);

}  // namespace mnist_train::checkpoint
