#include "checkpoint/synchronize.h"

#include <ATen/core/grad_mode.h>

#include "checkpoint/progress_text.h"

namespace mnist_train::checkpoint {

void synchronize(train::Trainer& trainer, comm::Communicator& communicator) {
  if (communicator.alone()) return;
  const at::NoGradGuard no_grad;
  at::Tensor values = trainer.parameters().values();
  communicator.broadcast(values);
  for (at::Tensor buffer : trainer.model().buffers()) communicator.broadcast(buffer);
  for (train::OptimizerTensor state : trainer.optimizer().state()) {
    communicator.broadcast(state.flat);
  }
  trainer.progress() =
      progress_from_text(communicator.broadcast_text(progress_to_text(trainer.progress())));
  trainer.optimizer().restored(trainer.progress().step);
}

}  // namespace mnist_train::checkpoint
