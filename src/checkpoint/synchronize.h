#pragma once

#include "comm/communicator.h"
#include "train/trainer.h"

namespace mnist_train::checkpoint {

/// Collective. Weights, buffers, optimizer state and progress of every rank become rank 0's, so
/// only rank 0 needs to see the checkpoint's file, and a rank that started differently cannot stay
/// different.
void synchronize(train::Trainer& trainer, comm::Communicator& communicator);

}  // namespace mnist_train::checkpoint
