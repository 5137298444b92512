#pragma once

#include <filesystem>
#include <optional>

#include "app/worker.h"
#include "checkpoint/checkpoint.h"
#include "data/image_set.h"
#include "train/trainer.h"

namespace mnist_train::app {

/// Where a run goes on from.
struct EarlierRun {
  std::filesystem::path path;  // of the checkpoint
  checkpoint::RunFacts facts;
};

/// Brings the trainer to the checkpoint that the job asks for, if there is one: the newest whole
/// one of the run folder, or the file of `--resume`. Later checkpoints of the run are set aside. On
/// rank 0 alone; the other ranks follow by `checkpoint::synchronize`. Throws Error(kCheckpoint).
std::optional<EarlierRun> go_on_from_checkpoint(const Worker& worker, const data::Dataset& dataset,
                                                train::Trainer& trainer);

}  // namespace mnist_train::app
