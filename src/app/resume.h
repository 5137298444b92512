#pragma once

#include <filesystem>
#include <optional>
#include <vector>

#include "app/worker.h"
#include "checkpoint/checkpoint.h"
#include "data/dataset.h"
#include "train/trainer.h"

namespace mnist_train::app {

/// Where a run goes on from.
struct ResumedRun {
  std::filesystem::path path;  // of the checkpoint
  checkpoint::RunFacts facts;
};

/// Brings the trainer to the checkpoint that the job asks for, if there is one: the newest whole
/// one of the run folder, or the file of `--resume`. Later checkpoints of the run are set aside. On
/// rank 0 alone; the other ranks follow by `checkpoint::synchronize`. Throws Error(kCheckpoint).
std::optional<ResumedRun> resume_from_checkpoint(const Worker& worker, const data::Dataset& dataset,
                                                 train::Trainer& trainer);

/// Before a run goes on, or starts afresh in the folder of one that was lost: results that are
/// later than `accuracies`, those up to here, are not this run's. The list is cut back, predictions
/// are removed, the model is set aside. Throws Error.
void truncate_results(const Worker& worker, const std::vector<double>& accuracies);

}  // namespace mnist_train::app
