#pragma once

#include "train/schedule.h"

namespace mnist_train::testing {

/// Returns whether both are equal, except for stop requests, which are transient.
inline bool same_progress(const train::Progress& a, const train::Progress& b) {
  return a.epoch == b.epoch && a.samples_into_epoch == b.samples_into_epoch && a.step == b.step &&
         a.samples_seen == b.samples_seen && a.epoch_sums.loss == b.epoch_sums.loss &&
         a.epoch_sums.correct == b.epoch_sums.correct &&
         a.epoch_sums.samples == b.epoch_sums.samples &&
         a.epoch_train_seconds == b.epoch_train_seconds && a.train_seconds == b.train_seconds &&
         a.test_seconds == b.test_seconds && a.accuracies == b.accuracies &&
         a.highest_accuracy == b.highest_accuracy && a.best_score == b.best_score &&
         a.best_accuracy == b.best_accuracy && a.best_step == b.best_step &&
         a.best_test_accuracy == b.best_test_accuracy && a.best_epoch == b.best_epoch &&
         a.plateau == b.plateau && a.early_stopping == b.early_stopping;
}

}  // namespace mnist_train::testing
