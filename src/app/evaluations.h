#pragma once

#include <optional>

#include "app/build_trainer.h"
#include "app/worker.h"
#include "eval/evaluator.h"
#include "train/trainer.h"

namespace mnist_train::app {

/// What the model is measured by after an epoch.
struct Evaluations {
  std::optional<eval::Evaluation> validation;  // where samples are held out
  eval::Evaluation test;
  double seconds = 0;  // that all of it took

  /// Returns the accuracy by which the best epoch is chosen and that can end a run.
  double selection_accuracy() const { return validation ? validation->accuracy : test.accuracy; }
};

/// Evaluates the model on the validation set, if any, and the test set, the latter with the
/// predictions that the config asks for and, as extra sums, the step times of every rank (see
/// `unpack_times`). Keeps the rank's status up to date. Collective.
Evaluations evaluate(Worker& worker, train::Trainer& trainer, RunImages& images);

}  // namespace mnist_train::app
