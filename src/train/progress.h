#pragma once

#include <cstdint>
#include <vector>

#include "train/schedule.h"
#include "train/step_log.h"

namespace mnist_train::train {

/// What `early_stopping` knows of the epochs so far.
struct EarlyStoppingState {
  double best_accuracy = -1;    // that later ones have to improve on; below 0: none yet
  std::int64_t bad_epochs = 0;  // without an improvement, in a row

  bool operator==(const EarlyStoppingState&) const = default;
};

/// How far a run has come: together with the weights and the optimizer's state, everything that the
/// rest of the run depends on. The order of the samples follows from seed and epoch, and the cursor
/// counts samples, not batches, so any number of processes can resume from it.
struct Progress {
  std::int64_t epoch = 0;               // finished epochs
  std::int64_t samples_into_epoch = 0;  // of the next epoch, in its global order
  std::int64_t step = 0;                // optimizer steps of the run
  std::int64_t samples_seen = 0;
  StepSums epoch_sums;             // of the unfinished epoch
  double epoch_train_seconds = 0;  // of the unfinished epoch
  double train_seconds = 0;
  double test_seconds = 0;
  std::vector<double> accuracies;  // test accuracy of each finished epoch
  double best_accuracy = -1;       // on the validation set, or the test set; below 0: none yet
  double best_test_accuracy = -1;  // of the same weights; below 0: none yet, or not known
  std::int64_t best_epoch = 0;     // from 1
  std::int64_t best_step = -1;
  PlateauState plateau;
  EarlyStoppingState early_stopping;

  /// Returns the number, from 1, of the epoch that the last step belongs to.
  std::int64_t last_epoch() const { return epoch + (samples_into_epoch > 0 ? 1 : 0); }
};

/// What the evaluation after an epoch gave.
struct EpochScores {
  double test_accuracy = 0;
  double selection_accuracy = 0;  // on the validation set where there is one, else the test set
  double selection_loss = 0;      // on that set
  double seconds = 0;             // that the evaluation took
};

/// Where the time of this rank's steps went since the epoch was begun or resumed.
/// Measured on CPUs alone: a GPU works behind the host's back.
struct StepTimes {
  double input_s = 0;          // gathering and normalising batches
  double compute_s = 0;        // forward, backward, optimizer
  double communication_s = 0;  // averaging gradients, with waiting for the others; what overlaps
                               // with backward (`bucketed`) counts as compute
  std::vector<double> step_s;  // of each step, all of it
};

}  // namespace mnist_train::train
