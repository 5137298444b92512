#pragma once

#include <memory>
#include <optional>

#include "app/worker.h"
#include "data/dataset.h"
#include "eval/evaluator.h"
#include "loader/batch_source.h"
#include "train/trainer.h"

namespace mnist_train::app {

/// What a run is measured on after every epoch.
struct EvaluatedImages {
  EvaluatedImages(const data::Dataset& dataset, const settings::NormalizeOptions& normalize,
                  at::Device device, const std::shared_ptr<loader::Augmenter>& augmenter);

  std::unique_ptr<loader::BatchSource> validation;  // null where none are held out
  std::unique_ptr<loader::BatchSource> test;
};

/// What `evaluate` found.
struct Evaluations {
  std::optional<eval::Evaluation> validation;
  eval::Evaluation test;

  /// The accuracy that the best epoch is chosen by and that ends a run.
  double decisive() const { return validation ? validation->accuracy : test.accuracy; }
};

/// Collective: all sets, the test set with the predictions that the config asks for and every
/// rank's step times as extra sums, with the rank's status kept up to date.
Evaluations evaluate(Worker& worker, train::Trainer& trainer, EvaluatedImages& images);

}  // namespace mnist_train::app
