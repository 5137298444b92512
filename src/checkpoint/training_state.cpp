#include "checkpoint/training_state.h"

#include <ATen/core/grad_mode.h>

#include "base/error.h"

namespace mnist_train::checkpoint {

namespace {

/// Calls `visit(path, member)` for each saved member of the progress, which may be const. Requests
/// to stop are not saved.
template <class SomeProgress, class Visit>
void for_each_member(SomeProgress& progress, const Visit& visit) {
  visit("/epoch", progress.epoch);
  visit("/samples_into_epoch", progress.samples_into_epoch);
  visit("/step", progress.step);
  visit("/samples_seen", progress.samples_seen);
  visit("/epoch_train_seconds", progress.epoch_train_seconds);
  visit("/train_seconds", progress.train_seconds);
  visit("/test_seconds", progress.test_seconds);
  visit("/accuracies", progress.accuracies);
  visit("/best_accuracy", progress.best_accuracy);
  visit("/best_step", progress.best_step);
  visit("/epoch_sums/loss", progress.epoch_sums.loss);
  visit("/epoch_sums/correct", progress.epoch_sums.correct);
  visit("/epoch_sums/samples", progress.epoch_sums.samples);
  visit("/best/test_accuracy", progress.best_test_accuracy);
  visit("/best/epoch", progress.best_epoch);
  visit("/plateau/best_loss", progress.plateau.best_loss);
  visit("/plateau/bad_epochs", progress.plateau.bad_epochs);
  visit("/plateau/drops", progress.plateau.drops);
  visit("/early_stopping/best_accuracy", progress.early_stopping.best_accuracy);
  visit("/early_stopping/bad_epochs", progress.early_stopping.bad_epochs);
}

/// Checkpoints of earlier versions lack these groups.
bool may_be_missing(const std::string& group) {
  return group == "/best" || group == "/plateau" || group == "/early_stopping";
}

}  // namespace

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

OrderedJson progress_to_json(const train::Progress& progress) {
  OrderedJson json;
  for_each_member(progress, [&](const char* path, const auto& value) {
    json[OrderedJson::json_pointer(path)] = value;
  });
  return json;
}

train::Progress progress_from_json(const OrderedJson& json) try {
  train::Progress progress;
  for_each_member(progress, [&](const char* path, auto& value) {
    const OrderedJson::json_pointer pointer(path);
    const auto group = pointer.parent_pointer();
    if (may_be_missing(group.to_string()) && !json.contains(group)) return;
    json.at(pointer).get_to(value);
  });
  return progress;
} catch (const nlohmann::json::exception& error) {
  throw Error(ExitCode::kCheckpoint,
              std::string("the progress of the run cannot be read: ") + error.what());
}

void broadcast_state(train::Trainer& trainer, comm::Communicator& communicator) {
  if (communicator.alone()) return;
  const at::NoGradGuard no_grad;
  StateTensors state = state_tensors(trainer);
  for (auto* tensors : {&state.flat, &state.buffers}) {
    for (at::Tensor& tensor : *tensors) communicator.broadcast(tensor);
  }
  trainer.progress() = progress_from_json(
      OrderedJson::parse(communicator.broadcast_text(progress_to_json(trainer.progress()).dump())));
  trainer.optimizer().restored(trainer.progress().step);
}

}  // namespace mnist_train::checkpoint
