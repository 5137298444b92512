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

  /// Returns what the best epoch is chosen by and what can end a run or lower the learning rate.
  const eval::Evaluation& selection() const { return validation ? *validation : test; }
  train::EpochScores scores() const {
    return {test.accuracy, selection().accuracy, selection().loss, seconds};
  }
};

/// Evaluates the model on the validation set, if any, and the test set, the latter with the
/// predictions that the config asks for, all wrong ones if it asks for any, and, as extra sums, the
/// step times of every rank (see `unpack_times`). Keeps the rank's status up to date. Collective.
Evaluations evaluate(Worker& worker, train::Trainer& trainer, RunImages& images);

}  // namespace mnist_train::app
