#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "app/worker.h"
#include "data/dataset.h"
#include "eval/evaluator.h"
#include "report/records.h"
#include "report/summary.h"
#include "train/trainer.h"

// The records of a run folder, made of what a run knows.
namespace mnist_train::app {

/// Returns the summary of a run before its first step.
report::Summary first_summary(const Worker& worker, const data::Dataset& dataset,
                              const train::Trainer& trainer);

/// Updates status and progress of the summary.
void add_progress(report::Summary& summary, const std::string& status, const Worker& worker,
                  const train::Trainer& trainer);

/// Returns the state in which this start of the run begins. `resumed_from`: a checkpoint; empty: a
/// fresh start.
report::RunStart run_start(const data::Dataset& dataset, const train::Trainer& trainer,
                           const std::string& resumed_from);

/// Returns the config that repeats this run. It includes the number of processes on one machine,
/// if another launcher has chosen it.
std::string config_to_repeat(const Worker& worker);

/// Returns lines for the log: the data ("60,000 training and 10,000 test images of 1x28x28, 10
/// classes"), the processes, the run folder.
std::vector<std::string> describe_run(const Worker& worker, const data::Dataset& dataset,
                                      const report::Summary& summary);

/// The evaluations after an epoch.
struct Evaluations {
  std::optional<eval::Evaluation> validation;  // if samples are held out
  eval::Evaluation test;
  double seconds = 0;  // of both

  /// Returns the one that chooses the best epoch and can end a run or lower the learning rate.
  const eval::Evaluation& selection() const { return validation ? *validation : test; }
  train::EpochScores scores() const {
    return {test.accuracy, selection().accuracy, selection().loss, seconds};
  }
};

/// Returns the numbers of the last epoch that was trained in, which has just been evaluated. Those
/// of its training are NaN if the run resumed at its end.
report::EpochRecord epoch_record(const train::Progress& progress, const Evaluations& evaluations);

/// Returns a rank's step times as numbers to sum over the ranks, zeros in place of the others'.
std::vector<double> pack_times(const train::StepTimes& times, int rank, int world_size);
/// Returns the times of all ranks that took steps from these sums.
std::vector<report::RankTimes> unpack_times(const std::vector<double>& sums);

/// Returns the wrong predictions of an evaluation that the run keeps.
std::vector<report::Mistake> choose_mistakes(const eval::Evaluation& evaluation,
                                             const data::ImageSet& images);

/// Returns histograms of the finite values of every parameter ("weights/conv1.weight") and of its
/// gradient in the last step ("gradients/…"), which `Trainer::all_gather_gradients` has made whole.
std::vector<std::pair<std::string, report::Histogram>> weight_histograms(
    const train::Trainer& trainer);

}  // namespace mnist_train::app
