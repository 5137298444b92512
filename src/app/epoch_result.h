#pragma once

#include <string>
#include <utility>
#include <vector>

#include "app/evaluations.h"
#include "data/dataset.h"
#include "report/records.h"
#include "train/progress.h"
#include "train/trainer.h"

namespace mnist_train::app {

/// Returns the numbers of the last epoch that was trained in, which has just been evaluated. Those
/// of its training are NaN if the run resumed at its end.
report::EpochRecord epoch_record(const train::Progress& progress, const Evaluations& evaluations);

/// Returns a rank's step times as numbers that can be summed over the ranks: zeros in the places of
/// the other ranks.
std::vector<double> pack_times(const train::StepTimes& times, int rank, int world_size);

/// Returns the times of all ranks that took steps, from the sum of what `pack_times` returned on
/// each.
std::vector<report::RankTimes> unpack_times(const std::vector<double>& sums);

/// Returns those of an evaluation's wrong predictions that the run keeps.
std::vector<report::Mistake> choose_mistakes(const eval::Evaluation& evaluation,
                                             const data::ImageSet& images);

/// Returns histograms of the finite values of every parameter ("weights/conv1.weight") and of its
/// gradient in the last step ("gradients/…"), which `Trainer::all_gather_gradients` has made whole.
std::vector<std::pair<std::string, report::Histogram>> weight_histograms(
    const train::Trainer& trainer);

}  // namespace mnist_train::app
