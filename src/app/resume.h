#pragma once

#include <filesystem>

#include "app/run_snapshots.h"
#include "app/worker.h"
#include "checkpoint/checkpoint.h"
#include "data/dataset.h"
#include "train/trainer.h"

namespace mnist_train::app {

/// What a run resumes from.
struct ResumedRun {
  std::filesystem::path path;  // of the checkpoint; "memory": a snapshot; empty: a fresh start
  checkpoint::RunFacts facts;  // of that checkpoint; of a snapshot, the lengths of files alone
  bool is_finished = false;    // the run was complete before this command
};

/// Brings the trainer of every rank to where the run starts: to the snapshot that an attempt before
/// this one left in memory, else to the checkpoint that the job asks for (the newest whole one of
/// the run folder, or the file of `--resume`), else to the weights of `model.weights`, if any. Only
/// rank 0 reads files. What the run folder holds of a later time (the future that the run left, or
/// that of a lost process) is set aside or removed. Collective. Throws Error(kCheckpoint).
ResumedRun resume_run(Worker& worker, const data::Dataset& dataset, train::Trainer& trainer,
                      RunSnapshots& snapshots, RunCheckpoints& checkpoints);

}  // namespace mnist_train::app
