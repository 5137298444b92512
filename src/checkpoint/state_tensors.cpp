#include "checkpoint/state_tensors.h"

namespace mnist_train::checkpoint {

StateTensors state_tensors(const train::Trainer& trainer) {
  StateTensors state;
  state.flat.push_back(trainer.parameters().values());
  for (const auto& tensor : trainer.optimizer().state()) state.flat.push_back(tensor.flat);
  state.buffers = trainer.model().buffers();
  if (trainer.average() != nullptr) {
    state.flat.push_back(trainer.average()->values());
    const auto more = trainer.average()->model().buffers();
    state.buffers.insert(state.buffers.end(), more.begin(), more.end());
  }
  return state;
}

}  // namespace mnist_train::checkpoint
